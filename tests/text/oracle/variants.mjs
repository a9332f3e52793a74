// Small tokenizers that use, one by one, what tokenizer.json can ask for and the four vocabularies do not.

const byteLevel = (prefix, regex) => ({type: 'ByteLevel', add_prefix_space: prefix, trim_offsets: true, use_regex: regex});
const split = (pattern, behavior, invert = false) => ({type: 'Split', pattern, behavior, invert});
const sequence = (...pretokenizers) => ({type: 'Sequence', pretokenizers});
const flags = {single_word: false, lstrip: false, rstrip: false, normalized: false, special: false};

// The 256 bytes and the first merges of a large vocabulary.
function small(large, merges = 3000) {
  const vocab = {}, kept = [];
  for (const [token, id] of Object.entries(large.model.vocab)) if ([...token].length === 1 && id < 256) vocab[token] = id;
  for (const [left, right] of large.model.merges.slice(0, merges)) {
    vocab[left + right] ??= Object.keys(vocab).length;
    kept.push([left, right]);
  }
  return {version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null, pre_tokenizer: byteLevel(false, true),
    post_processor: null, decoder: byteLevel(true, true),
    model: {type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false,
      byte_fallback: false, ignore_merges: false, vocab, merges: kept}};
}

export function* variants(large) {
  const base = small(large), size = Object.keys(base.model.vocab).length;
  // A token that the vocabulary has keeps its id.
  const added = contents => {
    let next = size;
    return contents.map(([content, more]) => ({id: base.model.vocab[content] ?? next++, content, ...flags, ...more}));
  };
  yield ['byte_level', base];
  yield ['prefix_space', {...base, pre_tokenizer: byteLevel(true, true)}];
  yield ['digits', {...base, pre_tokenizer: sequence({type: 'Digits', individual_digits: true}, byteLevel(false, true))}];
  yield ['digit_runs', {...base, pre_tokenizer: sequence({type: 'Digits', individual_digits: false}, byteLevel(true, false))}];
  for (const behavior of ['Isolated', 'Removed', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous']) {
    for (const invert of [false, true]) {
      yield [`split_${behavior}_${invert}`, {...base, pre_tokenizer: sequence(split({Regex: '\\s|[aeiou.\\d]'}, behavior, invert), byteLevel(false, false))}];
    }
  }
  yield ['split_string', {...base, pre_tokenizer: sequence(split({String: '  '}, 'MergedWithPrevious'), split({String: 'a'}, 'Isolated'), byteLevel(false, true))}];
  yield ['split_empty', {...base, pre_tokenizer: sequence(split({Regex: 'x*|(?=the)'}, 'Isolated'), byteLevel(false, false))}];
  yield ['anchors', {...base, pre_tokenizer: sequence(split({Regex: '^\\w+|\\W$|.\\z|(?<=e)\\S'}, 'Isolated'), byteLevel(false, false))}];
  yield ['possessive', {...base, pre_tokenizer: sequence(split({Regex: "(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"}, 'Isolated'), byteLevel(false, false))}];
  yield ['punctuation', {...base, pre_tokenizer: sequence({type: 'Punctuation', behavior: 'Isolated'}, byteLevel(false, true))}];
  yield ['nfc', {...base, normalizer: {type: 'Sequence', normalizers: [{type: 'NFC'}]}}];
  yield ['ignore_merges', {...base, model: {...base.model, ignore_merges: true, merges: base.model.merges.filter((_, i) => i % 3 > 0 || i < 300).filter(([a, b]) => a in base.model.vocab && b in base.model.vocab)}}];
  const fewer = Object.fromEntries(Object.entries(base.model.vocab).filter(([token]) => !/[QZ~éÃ€]/.test(token)));
  const stay = base.model.merges.filter(([a, b]) => a in fewer && b in fewer && a + b in fewer);
  yield ['unknown_dropped', {...base, model: {...base.model, vocab: fewer, merges: stay}}];
  for (const fuse_unk of [false, true]) {
    yield [`unknown_${fuse_unk}`, {...base, model: {...base.model, vocab: fewer, merges: stay, unk_token: '!', fuse_unk}}];
  }
  yield ['added', {...base, normalizer: {type: 'NFC'}, added_tokens: added([
    ['<left>', {lstrip: true}], ['<right>', {rstrip: true}], ['<both>', {lstrip: true, rstrip: true, special: true}],
    ['word', {single_word: true}], ['the', {single_word: true, lstrip: true}], ['<norm>', {normalized: true}], ['é', {normalized: true}],
    ['e\u0301x', {normalized: true, lstrip: true}], ['<', {}], ['<<', {special: true}], ['<<<>', {normalized: true}], [' x', {}], ['ab', {}], ['abab', {}],
    ['\n', {rstrip: true}], ['中', {single_word: true}], ['👍', {single_word: true, rstrip: true}]])}];
  const bos = {...base, added_tokens: added([['<s>', {special: true}], ['</s>', {special: true}]])};
  const template = {type: 'TemplateProcessing', single: [{SpecialToken: {id: '<s>', type_id: 0}}, {Sequence: {id: 'A', type_id: 0}}, {SpecialToken: {id: '</s>', type_id: 0}}],
    pair: [{Sequence: {id: 'A', type_id: 0}}, {Sequence: {id: 'B', type_id: 1}}],
    special_tokens: {'<s>': {id: '<s>', ids: [size], tokens: ['<s>']}, '</s>': {id: '</s>', ids: [size + 1], tokens: ['</s>']}}};
  yield ['template', {...bos, post_processor: template}];
  yield ['template_sequence', {...bos, post_processor: {type: 'Sequence', processors: [byteLevel(true, true), template]}}];
}

// Those of vocabularies that came from SentencePiece: where a mark is put in front, and where text is cut.
export function* markedVariants(large) {
  const mark = '\u2581';
  const metaspace = more => ({type: 'Metaspace', replacement: mark, ...more});
  const whole = {...large, normalizer: null};
  for (const prepend_scheme of ['always', 'first', 'never']) {
    for (const split of [false, true]) yield [`metaspace_${prepend_scheme}_${split}`, {...whole, pre_tokenizer: metaspace({prepend_scheme, split})}];
  }
  yield ['metaspace_nfc', {...whole, normalizer: {type: 'NFC'}, pre_tokenizer: sequence(metaspace({prepend_scheme: 'first', split: false}))}];
  yield ['marks_split', {...large, pre_tokenizer: sequence({type: 'Digits', individual_digits: true}, split({String: 'e'}, 'MergedWithPrevious'))}];
  let next = Object.keys(large.model.vocab).length;
  const added = [['<left>', {lstrip: true}], ['<right>', {rstrip: true}], ['word', {single_word: true}], ['<norm>', {normalized: true}],
    ['the', {normalized: true}], [`${mark}${mark}`, {}], ['<<', {special: true}]].map(([content, more]) =>
    ({id: large.model.vocab[content] ?? next++, content, ...flags, ...more}));
  yield ['marks_added', {...large, added_tokens: [...large.added_tokens, ...added]}];
  yield ['marks_ignore_merges', {...large, model: {...large.model, ignore_merges: true}}];
}
