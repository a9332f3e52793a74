// llama.cpp's side of a comparison: answers the requests of bench/step_bench.cc (see its head) with llama.cpp's times.
//
//   node worker.mjs MODEL.gguf CONFIG.json --flash on|off --chunk N --threads N
//
// The KV cache is float16, llama.cpp's default. Only the model step is timed.
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import readline from 'node:readline';
import { parseArgs } from 'node:util';
import { Context, describe, loadModel } from './llama.mjs';
import { token } from './models.mjs';

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: { flash: { type: 'string', default: 'off' }, chunk: { type: 'string', default: '512' }, threads: { type: 'string', default: '2' } },
});
const [file, configFile] = positionals;
const vocab = JSON.parse(fs.readFileSync(configFile, 'utf8')).vocab_size;
const model = await loadModel(file);
const options = { flash: flags.flash === 'on', chunk: Number(flags.chunk), threads: Number(flags.threads) };

const prompt = (sequence, length) => Array.from({ length }, (_, i) => token(sequence, i, vocab));
const roundUp = (n, to) => Math.ceil(n / to) * to;
const openContext = (sequences, tokens) => Context.open(model, { ...options, sequences, context: roundUp(tokens, 256) });

async function prefill(tokens) {
  const context = await openContext(1, tokens);
  const seconds = await context.prefill(0, prompt(0, tokens));
  await context.close();
  return [seconds];
}

/// A batch of sequences, all of one length, that decodes in turns.
class Decode {
  static async start(sequences, end, steps) {
    const decode = new Decode();
    decode.context = await openContext(sequences, end);
    decode.sequences = sequences;
    decode.position = end - steps;
    await decode.context.prefill(0, prompt(0, decode.position));
    // The cells of the other sequences hold the same prompt, copied: reading it again would take minutes.
    if (sequences > 1) {
      const state = path.join(os.tmpdir(), `peer-state-${process.pid}`);
      await decode.context.native.saveSequenceStateToFile(state, 0, Uint32Array.from([2]));
      for (let s = 1; s < sequences; ++s) await decode.context.native.loadSequenceStateFromFile(state, s, end);
      fs.rmSync(state);
    }
    return decode;
  }

  async go(steps) {
    const seconds = [];
    for (let i = 0; i < steps; ++i, ++this.position) {
      const rows = Array.from({ length: this.sequences }, (_, sequence) =>
        ({ sequence, position: this.position, tokens: [token(sequence, this.position, vocab)], logits: [0] }));
      seconds.push((await this.context.step(rows)).seconds);
    }
    return seconds;
  }
}

let decode;
async function answer(request, a, b, c) {
  if (request === 'prefill' && !decode) return prefill(a);
  if (request === 'decode' && !decode) {
    decode = await Decode.start(a, b, c);
    return [];
  }
  if (request === 'go' && decode) return decode.go(a);
  if (request === 'end') {
    await decode?.context.close();
    decode = undefined;
    return [];
  }
  throw new Error(`not a request here: ${request}`);
}

console.error(`${describe()}, flash attention ${flags.flash}, chunks of ${flags.chunk}, ${flags.threads} threads`);
for await (const line of readline.createInterface({ input: process.stdin })) {
  const [request, ...numbers] = line.split(' ');
  const seconds = await answer(request, ...numbers.map(Number));
  console.log(['ok', ...seconds.map((s) => s.toFixed(9))].join(' '));
}
process.exit(0);
