// Writes one set of seeded random weights twice: as a Hugging Face folder for Weft and as a GGUF file for llama.cpp.
//
//   node write_model.mjs NAME DIR        makes DIR/NAME/{config.json, model.safetensors} and DIR/NAME.gguf
//
// A weight is one of 256 evenly spaced values, so that a value costs one table look-up and a gigabyte takes seconds.
import fs from 'node:fs';
import path from 'node:path';
import { MODELS, ggufMetadataOf, ggufTensorsOf, tensorsOf } from './models.mjs';

const GGUF_ALIGNMENT = 32;
const GGUF_TYPE = { u32: 4, f32: 6, bool: 7, string: 8 };
const GGML_F32 = 0, GGML_BF16 = 30;

function roundToBf16(values) {
  const bits = new Uint32Array(new Float32Array(values).buffer);
  return Uint16Array.from(bits, (b) => (b + 0x7fff + ((b >>> 16) & 1)) >>> 16);
}

function widen(bf16) {
  return new Float32Array(Uint32Array.from(bf16, (b) => b << 16).buffer);
}

/// `count` values drawn from `table` (256 entries). xorshift32, seeded by the tensor's name (FNV-1a).
function draw(name, count, table) {
  let state = 0x811c9dc5;
  for (const ch of Buffer.from(name)) state = Math.imul(state ^ ch, 0x01000193) >>> 0;
  state |= 1;
  const out = new table.constructor(count);
  for (let i = 0; i < count;) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    out[i++] = table[state & 255];
    if (i < count) out[i++] = table[(state >>> 8) & 255];
    if (i < count) out[i++] = table[(state >>> 16) & 255];
    if (i < count) out[i++] = table[state >>> 24];
  }
  return out;
}

/// The tensor's values in the stored type: uniform with standard deviation `gain`, about 1 for norms.
function values(tensor, dtype) {
  const centre = tensor.kind === 1 ? 1 : 0;
  const levels = Array.from({ length: 256 }, (_, k) => centre + (tensor.gain * Math.sqrt(3) * (k - 127.5)) / 128);
  const table = dtype === 'float32' ? Float32Array.from(levels) : roundToBf16(levels);
  return draw(tensor.name, tensor.shape.reduce((a, b) => a * b, 1), table);
}

function transposed(array, rows, cols) {
  const out = new array.constructor(array.length);
  for (let r = 0; r < rows; ++r) for (let c = 0; c < cols; ++c) out[c * rows + r] = array[r * cols + c];
  return out;
}

function writeAt(fd, array, at) {
  const bytes = Buffer.from(array.buffer, array.byteOffset, array.byteLength);
  for (let done = 0; done < bytes.length;) done += fs.writeSync(fd, bytes, done, Math.min(bytes.length - done, 1 << 28), at + done);
}

function safetensorsHeader(tensors, dtype) {
  const header = {}, size = dtype === 'float32' ? 4 : 2;
  let at = 0;
  for (const t of tensors) {
    const bytes = t.shape.reduce((a, b) => a * b, size);
    header[t.name] = { dtype: size === 4 ? 'F32' : 'BF16', shape: t.shape, data_offsets: [at, at + bytes] };
    at += bytes;
  }
  let text = JSON.stringify(header);
  text += ' '.repeat((8 - (text.length % 8)) % 8);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([length, Buffer.from(text)]);
}

function u32(value) {
  const b = Buffer.alloc(4);
  b.writeUInt32LE(value);
  return b;
}

function u64(value) {
  const b = Buffer.alloc(8);
  b.writeBigUInt64LE(BigInt(value));
  return b;
}

function ggufString(text) {
  return Buffer.concat([u64(Buffer.byteLength(text)), Buffer.from(text)]);
}

function ggufValue(type, value) {
  switch (type) {
    case 'u32': return u32(value);
    case 'f32': { const b = Buffer.alloc(4); b.writeFloatLE(value); return b; }
    case 'bool': return Buffer.from([value ? 1 : 0]);
    default: return ggufString(value);
  }
}

/// Header bytes, padded to where the data starts, and for each tensor name its offset in the file and element size.
function ggufHeader(config) {
  const metadata = ggufMetadataOf(config), tensors = ggufTensorsOf(config);
  const parts = [Buffer.from('GGUF'), u32(3), u64(tensors.length), u64(metadata.length)];
  for (const [key, type, value] of metadata) parts.push(ggufString(key), u32(GGUF_TYPE[type]), ggufValue(type, value));
  const places = new Map();
  let at = 0;
  for (const { name, dims, f32 } of tensors) {
    const wide = f32 || config.torch_dtype === 'float32';
    parts.push(ggufString(name), u32(dims.length), ...dims.map(u64), u32(wide ? GGML_F32 : GGML_BF16), u64(at));
    places.set(name, { at, wide });
    at += dims.reduce((a, b) => a * b, wide ? 4 : 2);
    at = Math.ceil(at / GGUF_ALIGNMENT) * GGUF_ALIGNMENT;
  }
  let header = Buffer.concat(parts);
  header = Buffer.concat([header, Buffer.alloc((GGUF_ALIGNMENT - (header.length % GGUF_ALIGNMENT)) % GGUF_ALIGNMENT)]);
  for (const place of places.values()) place.at += header.length;
  return { header, places, bytes: header.length + at };
}

const [name, dir] = process.argv.slice(2);
const config = MODELS[name];
if (!config || !dir) {
  console.error(`usage: node write_model.mjs NAME DIR, NAME one of ${Object.keys(MODELS).join(' ')}`);
  process.exit(2);
}
const folder = path.join(dir, name);
fs.mkdirSync(folder, { recursive: true });

const tensors = tensorsOf(config), dtype = config.torch_dtype;
const hf = fs.openSync(path.join(folder, 'model.safetensors'), 'w');
const gguf = fs.openSync(`${folder}.gguf`, 'w');
const hfHeader = safetensorsHeader(tensors, dtype), layout = ggufHeader(config);
writeAt(hf, hfHeader, 0);
writeAt(gguf, layout.header, 0);
fs.ftruncateSync(gguf, layout.bytes);

let hfAt = hfHeader.length;
for (const tensor of tensors) {
  const data = values(tensor, dtype);
  writeAt(hf, data, hfAt);
  hfAt += data.byteLength;
  let from = 0;
  for (const part of tensor.to) {
    const place = layout.places.get(part.tensor);
    let piece = data.subarray(from, (from += part.rows * part.cols));
    if (part.transpose) piece = transposed(piece, part.rows, part.cols);
    if (place.wide && dtype !== 'float32') piece = widen(piece);
    writeAt(gguf, piece, place.at + (part.at ?? 0) * piece.BYTES_PER_ELEMENT);
  }
}
fs.closeSync(hf);
fs.closeSync(gguf);
// Last, so that a folder with a config.json is complete.
fs.writeFileSync(path.join(folder, 'config.json'), JSON.stringify(config, null, 2) + '\n');
