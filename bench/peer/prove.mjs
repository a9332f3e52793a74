// Proves that both programs compute the same model: with float32 weights and cache, flash attention off, the log probabilities
// of every position must agree with the float64 reference model to 1e-4 of the logits' standard deviation.
//
//   node prove.mjs BUILD_DIR DIR         the tiny models are in DIR; exit status 1 if one side disagrees
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { Context, LogProbs, loadModel } from './llama.mjs';
import { MODELS, token } from './models.mjs';

const LIMIT = 1e-4;
const TOKENS = 100;  // past the tiny models' original context, so that yarn's interpolation shows

async function peerRows(file, ids, vocab) {
  const model = await loadModel(file);
  const context = await Context.open(model, { context: 256, chunk: 256, threads: 2, flash: false, kvType: 'F32' });
  const { logits: [where] } = await context.step([{ sequence: 0, position: 0, tokens: ids, logits: ids.map((_, i) => i) }]);
  const reader = new LogProbs(model), rows = [];
  for (const row of where) rows.push(await reader.read(context, row, vocab));
  await context.close();
  return rows;
}

function referenceRows(build, folder, ids, vocab) {
  const out = `${folder}.reference`;
  execFileSync(path.join(build, 'weft_reference_logits'), [folder, out], { input: ids.join('\n') });
  const bytes = fs.readFileSync(out);
  const all = new Float64Array(bytes.buffer, bytes.byteOffset, bytes.length / 8);
  return ids.map((_, i) => all.subarray(i * vocab, (i + 1) * vocab));
}

function weftRows(build, folder, ids, vocab) {
  const request = `${folder}.prompts.json`, out = `${folder}.eval.safetensors`;
  fs.writeFileSync(request, JSON.stringify({ prompts: [{ name: 'p', input_ids: ids, all_logits: true }] }));
  execFileSync(path.join(build, 'weft'), ['eval', folder, '--prompts', request, '--out', out, '--dtype', 'float32', '--threads', '2'],
    { stdio: ['ignore', 'ignore', 'inherit'] });
  const bytes = fs.readFileSync(out);
  const headerBytes = Number(bytes.readBigUInt64LE(0));
  const [begin] = JSON.parse(bytes.toString('utf8', 8, 8 + headerBytes))['p.logits'].data_offsets;
  return ids.map((_, i) => {
    const at = 8 + headerBytes + begin + i * vocab * 4;
    return logSoftmax(Float64Array.from({ length: vocab }, (_, j) => bytes.readFloatLE(at + 4 * j)));
  });
}

function logSoftmax(row) {
  const largest = row.reduce((a, b) => Math.max(a, b));
  const shift = largest + Math.log(row.reduce((sum, x) => sum + Math.exp(x - largest), 0));
  return row.map((x) => x - shift);
}

function std(row) {
  const mean = row.reduce((a, b) => a + b) / row.length;
  return Math.sqrt(row.reduce((sum, x) => sum + (x - mean) ** 2, 0) / row.length);
}

/// Largest difference in units of the reference's mean standard deviation; NaN if a value is missing.
function difference(rows, reference) {
  const scale = reference.reduce((sum, row) => sum + std(row), 0) / reference.length;
  let worst = 0;
  rows.forEach((row, i) => row.forEach((x, j) => {
    const d = Math.abs(x - reference[i][j]) / scale;
    if (!(d <= worst)) worst = d;
  }));
  return worst;
}

const [build, dir] = process.argv.slice(2);
let failed = false;
console.log('| model | llama.cpp, difference / std | Weft, difference / std |\n|---|---|---|');
for (const name of ['qwen3-tiny', 'mla-tiny']) {
  const folder = path.join(dir, name), vocab = MODELS[name].vocab_size;
  const ids = Array.from({ length: TOKENS }, (_, i) => token(0, i, vocab));
  const reference = referenceRows(build, folder, ids, vocab);
  const peer = difference(await peerRows(`${folder}.gguf`, ids, vocab), reference);
  const weft = difference(weftRows(build, folder, ids, vocab), reference);
  console.log(`| ${name} | ${peer.toExponential(1)} | ${weft.toExponential(1)} |`);
  failed ||= !(peer < LIMIT && weft < LIMIT);
}
if (failed) console.error(`not the same model: a difference is not below ${LIMIT}`);
process.exit(failed ? 1 : 0);
