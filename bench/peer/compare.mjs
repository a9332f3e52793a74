// Times llama.cpp and Weft in turns on the same weights and prints one row of a Markdown table per piece of work.
//
//   node compare.mjs BUILD_DIR DIR [--rows REGEX] [--rounds 5] [--threads 2] [--out RESULTS.json]
//
// A row's name is e.g. "mla-mid decode 4096 x 16"; --rows picks by it. By default the rows with one sequence run.
//
// Memory bandwidth of a shared machine drifts within minutes, so only times of the same minute are compared: in each round both
// programs do the same work one after the other, one resting in a read while the other runs, and the ratio of each round counts.
// Before the rounds every variant of a program (flash attention, chunk) runs by itself; the fastest of each program goes on.
import { execFileSync, spawn } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import readline from 'node:readline';
import { parseArgs } from 'node:util';
import { MODELS, stepBytes } from './models.mjs';

const STEPS = 16;  // decode steps of a round
const here = import.meta.dirname;

const { values: flags, positionals: [build, dir] } = parseArgs({
  allowPositionals: true,
  options: {
    rows: { type: 'string', default: '(prefill|x 1$)' }, rounds: { type: 'string', default: '5' },
    threads: { type: 'string', default: '2' }, out: { type: 'string' },
  },
});
const rounds = Number(flags.rounds);

/// All work that can be asked for. `target`: the time of llama.cpp over Weft's that Weft has to reach with two threads.
const TARGETS = {
  'qwen3-0.6b': { prefill: [1.5, 1.5], decode: { 512: [1.0, 1.3, 1.5], 4096: [1.0, 1.3, 1.5] } },
  'mla-mid': { prefill: [1.5, 1.5], decode: { 512: [1.2, 1.3, 1.5], 4096: [1.5, 1.5, 2.0] } },
};
const rows = [];
for (const [model, target] of Object.entries(TARGETS)) {
  [512, 4096].forEach((tokens, i) => {
    rows.push({ model, kind: 'prefill', context: tokens, sequences: 1, target: target.prefill[i], name: `${model} prefill ${tokens}` });
  });
  for (const context of [512, 4096]) {
    [1, 4, 16].forEach((sequences, i) => rows.push({
      model, kind: 'decode', context, sequences, target: target.decode[context][i], name: `${model} decode ${context} x ${sequences}`,
    }));
  }
}
const wanted = rows.filter((row) => new RegExp(flags.rows).test(row.name));

/// A program that answers requests with times; see bench/step_bench.cc.
class Program {
  constructor(label, command, args) {
    this.label = label;
    this.child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    this.lines = readline.createInterface({ input: this.child.stdout })[Symbol.asyncIterator]();
  }

  async ask(request) {
    this.child.stdin.write(`${request}\n`);
    const { value, done } = await this.lines.next();
    if (done || !value.startsWith('ok')) throw new Error(`${this.label} failed at "${request}"`);
    return value.split(' ').slice(1).map(Number);
  }

  async close() {
    const exited = new Promise((resolve) => this.child.once('exit', resolve));
    this.child.stdin.end();
    await exited;
  }
}

function startPeer(model, flash, chunk) {
  return new Program(`flash ${flash}, chunk ${chunk}`, process.execPath, [
    path.join(here, 'worker.mjs'), path.join(dir, `${model}.gguf`), path.join(dir, model, 'config.json'),
    '--flash', flash, '--chunk', String(chunk), '--threads', flags.threads,
  ]);
}

function startWeft(model, chunk, sequences, context) {
  // Room for each sequence and a few tokens more: 16 tokens to a block.
  const blocks = sequences * (Math.ceil(context / 16) + 4);
  return new Program(`chunk ${chunk}`, path.join(build, 'weft_step_bench'), [
    path.join(dir, model), '--threads', flags.threads, '--max-num-batched-tokens', String(chunk), '--max-num-seqs', '32',
    '--num-gpu-blocks-override', String(blocks), '--block-size', '16',
  ]);
}

/// [one thread, two threads] GB/s.
function readBandwidth() {
  return execFileSync(path.join(build, 'weft_read_bandwidth'), { encoding: 'utf8' }).trim().split(' ').map(Number);
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b), n = sorted.length;
  return n % 2 ? sorted[(n - 1) / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

// An idle thread pool may spin for a while after its last step.
const pause = () => new Promise((resolve) => setTimeout(resolve, 300));

async function seconds(program, row) {
  const times = await program.ask(row.kind === 'prefill' ? `prefill ${row.context}` : `go ${STEPS}`);
  await pause();
  return median(times);
}

// The first go of a program also reads its weights from disk, so where a go is short each has two.
const goesFirst = (row) => (row.kind === 'decode' || row.context < 2048 ? 2 : 1);

async function fastest(programs, row) {
  if (programs.length === 1) return programs[0];
  let best;
  for (const program of programs) {
    let time = Infinity;
    for (let go = 0; go < goesFirst(row); ++go) time = Math.min(time, await seconds(program, row));
    console.error(`  ${program.label}: ${time.toFixed(4)} s`);
    if (!best || time < best.time) best = { program, time };
  }
  return best.program;
}

/// The peer programs of a decode row: both kinds of attention, unless their caches would not fit beside each other and Weft's;
/// then each runs alone first, and the faster one again.
async function decodePeers(row) {
  const start = (flash) => startPeer(row.model, flash, 512);
  const config = MODELS[row.model];
  const cacheBytes = stepBytes(config, row.sequences, row.context) - stepBytes(config, row.sequences, 0);
  if (cacheBytes < 3e9) return [start('off'), start('on')];
  const times = {};
  for (const flash of ['off', 'on']) {
    const program = start(flash);
    await program.ask(`decode ${row.sequences} ${row.context} ${STEPS}`);
    times[flash] = await seconds(program, row);
    await program.close();
  }
  return [start(times.on < times.off ? 'on' : 'off')];
}

/// Times of one row: { peer, weft, before, after, rounds: [[peer seconds, weft seconds], ...] }.
async function measure(row, peers, wefts) {
  console.error(row.name);
  if (row.kind === 'decode') {
    for (const program of [...peers, ...wefts]) await program.ask(`decode ${row.sequences} ${row.context} ${STEPS * (rounds + goesFirst(row))}`);
    await pause();
  }
  const peer = await fastest(peers, row), weft = await fastest(wefts, row);
  if (row.kind === 'decode') {
    // A program without a choice has not had those goes yet; both have to stand at the same context.
    for (const [program, programs] of [[peer, peers], [weft, wefts]]) {
      for (let go = 0; programs.length === 1 && go < goesFirst(row); ++go) await seconds(program, row);
    }
  }
  const before = readBandwidth(), times = [];
  for (let round = 0; round < rounds; ++round) times.push([await seconds(peer, row), await seconds(weft, row)]);
  const after = readBandwidth();
  if (row.kind === 'decode') for (const program of [...peers, ...wefts]) await program.ask('end');
  return { ...row, peer: peer.label, weft: weft.label, before, after, rounds: times };
}

function tableRow(result) {
  const ratios = result.rounds.map(([peer, weft]) => peer / weft);
  const column = (i) => median(result.rounds.map((times) => times[i]));
  const show = result.kind === 'prefill' ? (s) => `${(result.context / s).toFixed(0)} tokens/s` : (s) => `${(1000 * s).toFixed(1)} ms`;
  const threads = Number(flags.threads) === 1 ? 0 : 1;
  let memory = '- | -';
  if (result.kind === 'decode') {
    const gigabytes = stepBytes(MODELS[result.model], result.sequences, result.context) / 1e9;
    const bandwidth = (result.before[threads] + result.after[threads]) / 2;
    memory = `${gigabytes.toFixed(2)} GB, ${(gigabytes / column(1)).toFixed(1)} GB/s (${((100 * gigabytes) / column(1) / bandwidth).toFixed(0)} %)`;
    memory += ` | ${result.before[threads]}, ${result.after[threads]} GB/s`;
  }
  const target = Number(flags.threads) === 1 ? 1.0 : result.target;
  return `| ${result.name} | ${show(column(0))} (${result.peer}) | ${show(column(1))} (${result.weft}) | **${median(ratios).toFixed(2)}** ` +
    `(${Math.min(...ratios).toFixed(2)}-${Math.max(...ratios).toFixed(2)}) | ${target} | ${memory} |`;
}

const busy = os.loadavg()[0];
if (busy > 0.5) console.error(`other programs are running (load ${busy.toFixed(1)}): the times will be of little use`);

const results = [];
console.log('| work | llama.cpp | Weft | ratio, median (range) | target | Weft reads | memory before, after |\n|---|---|---|---|---|---|---|');
for (const model of Object.keys(TARGETS)) {
  const mine = wanted.filter((row) => row.model === model);
  if (mine.length === 0) continue;
  // Prefill first: its programs differ by chunk and go before the decode rows fill the memory.
  const prefill = mine.filter((row) => row.kind === 'prefill');
  if (prefill.length > 0) {
    const peers = ['off', 'on'].flatMap((flash) => [512, 256].map((chunk) => startPeer(model, flash, chunk)));
    // A go over a long prompt takes a minute, and chunks of 512 were the faster ones there.
    const candidates = (row) => (row.context < 2048 ? peers : peers.filter((program) => program.label.endsWith('512')));
    const wefts = [512, 2048].map((chunk) => startWeft(model, chunk, 1, 4096));
    for (const row of prefill) {
      results.push(await measure(row, candidates(row), wefts));
      console.log(tableRow(results.at(-1)));
    }
    for (const program of [...peers, ...wefts]) await program.close();
  }
  for (const row of mine.filter((r) => r.kind === 'decode')) {
    const peers = await decodePeers(row);
    const wefts = [startWeft(model, 2048, row.sequences, row.context)];
    results.push(await measure(row, peers, wefts));
    console.log(tableRow(results.at(-1)));
    for (const program of [...peers, ...wefts]) await program.close();
  }
}
if (flags.out) fs.writeFileSync(flags.out, JSON.stringify({ threads: flags.threads, results }, null, 2) + '\n');
