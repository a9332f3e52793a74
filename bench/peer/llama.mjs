// llama.cpp through the addon object of node-llama-cpp, below that package's own batching: token ids in, one timed model step
// at a time, logits out.
import { createRequire } from 'node:module';
import path from 'node:path';
import fs from 'node:fs';

const require = createRequire(import.meta.url);
const binaries = path.join(import.meta.dirname, 'node_modules/@node-llama-cpp/linux-x64/bins/linux-x64');
const ADDON_LOG_WARN = 3;

let addon;

async function loadAddon() {
  if (addon) return addon;
  addon = require(path.join(binaries, 'llama-addon.node'));
  addon.setLogger((level, message) => process.env.PEER_LOG && process.stderr.write(message));
  addon.setLoggerLogLevel(process.env.PEER_LOG ? 5 : ADDON_LOG_WARN);
  addon.loadBackends();
  addon.loadBackends(binaries);  // picks the libggml-cpu-*.so that fits this CPU
  await addon.init();
  return addon;
}

/// The release of llama.cpp in the package, and the CPU variant that this process has loaded.
export function describe() {
  const meta = JSON.parse(fs.readFileSync(path.join(binaries, '_nlcBuildMetadata.json'), 'utf8'));
  const variant = fs.readFileSync('/proc/self/maps', 'utf8').match(/libggml-cpu-[a-z0-9]+\.so/);
  return `llama.cpp ${meta.buildOptions.llamaCpp.release}, ${variant ? variant[0] : 'no CPU variant'}`;
}

export async function loadModel(file) {
  await loadAddon();
  const model = new addon.AddonModel(file, { addonExports: addon, gpuLayers: 0, useMmap: true });
  if (!(await model.init())) throw new Error(`llama.cpp cannot load ${file}`);
  return model;
}

/// A KV cache of `sequences` times `context` tokens, stepped by the caller.
export class Context {
  constructor(native, chunk) {
    this.native = native;
    this.chunk = chunk;
  }

  static async open(model, { sequences = 1, context, chunk, threads, flash, kvType = 'F16' }) {
    const type = addon.getGgmlType(kvType);
    const native = new addon.AddonContext(model, {
      sequences, contextSize: sequences * context, batchSize: chunk, threads, flashAttention: flash,
      kvCacheKeyType: type, kvCacheValueType: type,
    });
    if (!(await native.init())) throw new Error('llama.cpp cannot create the context');
    return new Context(native, chunk);
  }

  /// One model step over `rows`, a list of { sequence, position, tokens, logits }: logits lists the tokens whose logits are
  /// wanted. Returns the seconds of the step and where the logits lie.
  async step(rows) {
    this.native.initBatch(rows.reduce((n, row) => n + row.tokens.length, 0));
    const logits = rows.map((row) =>
      this.native.addToBatch(row.sequence, row.position, Uint32Array.from(row.tokens), Uint32Array.from(row.logits ?? [])));
    const start = performance.now();
    await this.native.decodeBatch();
    return { seconds: (performance.now() - start) / 1000, logits };
  }

  /// Feeds one prompt in chunks, with logits of its last token. Returns the seconds of the steps.
  async prefill(sequence, tokens) {
    let seconds = 0;
    for (let at = 0; at < tokens.length; at += this.chunk) {
      const part = tokens.slice(at, at + this.chunk);
      const last = at + this.chunk >= tokens.length ? [part.length - 1] : [];
      seconds += (await this.step([{ sequence, position: at, tokens: part, logits: last }])).seconds;
    }
    return seconds;
  }

  forget(sequence) {
    this.native.disposeSequence(sequence);
  }

  async close() {
    await this.native.dispose();
  }
}

/// Reads log probabilities. The addon does not hand out logits, but log p = logit - constant carries the same information.
export class LogProbs {
  constructor(model) {
    this.sampler = new addon.AddonSampler(model);
    this.sampler.applyConfig({ temperature: 0 });
  }

  /// [vocab] log probabilities of one row of the latest step.
  async read(context, row, vocab) {
    const [, pairs] = await context.native.sampleToken(row, this.sampler, true);
    const out = new Float64Array(vocab).fill(NaN);
    for (let i = 0; i < pairs.length; i += 2) out[pairs[i]] = Math.log(pairs[i + 1]);
    return out;
  }
}
