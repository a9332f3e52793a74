// Random texts of every kind that tokenizers cut differently. The same seed gives the same texts.

export class Random {
  constructor(seed) { this.state = BigInt(seed) * 0x9e3779b97f4a7c15n & 0xffffffffffffffffn; }
  // splitmix64
  bits() {
    this.state = this.state + 0x9e3779b97f4a7c15n & 0xffffffffffffffffn;
    let z = this.state;
    z = (z ^ z >> 30n) * 0xbf58476d1ce4e5b9n & 0xffffffffffffffffn;
    z = (z ^ z >> 27n) * 0x94d049bb133111ebn & 0xffffffffffffffffn;
    return Number(BigInt.asUintN(32, z ^ z >> 31n));
  }
  below(n) { return this.bits() % n; }
  in(low, high) { return low + this.below(high - low + 1); }
  pick(list) { return list[this.below(list.length)]; }
  chance(p) { return this.bits() < p * 0x100000000; }
}

const words = {
  english: `the of and to in is that for it was on are as with his they at be this from have or by one had not but what all were when we
    there can an your which their said if do will each about how up out them then she many some so these would other into has more her two
    like him see time could no make than first been its who now people my made over did down only way find use may water long little very
    after words called just where most know get through back much before go good new write our used me man too any day same right look
    think also around another came come work three word must because does part even place well such here take why things help put years
    different away again off went old number internationalization antidisestablishmentarianism I'm you're he'll WE'VE can't IT'S o'clock
    Ångström naïve façade don't she'd Tokenizer JSON HTTPServer camelCaseIdentifier SCREAMING_SNAKE x86_64 e.g. U.S.A. 3rd`,
  german: 'der die und das Straße Größe über können Übung Donaudampfschifffahrtsgesellschaft nicht ein ist für mit dem Maß weiß',
  french: "l'été où ça être garçon aujourd'hui qu'il œuvre naïf à la première fois",
  czech: 'ďábelské ódy příliš žluťoučký kůň úpěl řeřicha šťastný dům',
  turkish: 'İstanbul ığdır çağ öğretmen şeker IĞDIR istanbul',
  vietnamese: 'Tiếng Việt đường phố người được những không một',
  russian: 'и в не на я быть он с что а по это она этот к но они мы Москва Санкт-Петербург съёмка',
  greek: 'και το να του η ο της με για την Ελλάδα ὀξύς ἄνθρωπος',
  chinese: '的 一 是 在 不了 有和 人这 中大为 上个 国我 以要他 时来用 们生到作 地于出 就分对成会 可主发年动同工也能下过子说 繁體中文 龍馬精神 𠀀𠮷𡈽',
  japanese: 'これは日本語の文章です カタカナ ひらがな 漢字 トークナイザー ｶﾅ が゙ パ',
  korean: '한국어 문장 겼다 안녕하세요 토크나이저 각 힣',
  arabic: 'مرحبا بالعالم اللغة العربية السَّلَامُ عَلَيْكُمْ ١٢٣',
  hebrew: 'שלום עולם בְּרֵאשִׁית עברית',
  hindi: 'नमस्ते दुनिया हिन्दी क्षत्रिय क़लम १२३४',
  thai: 'สวัสดีชาวโลก ภาษาไทย ที่ ๑๒๓',
  tamil: 'வணக்கம் தமிழ் கோவை',
  mathematics: '𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ α∧¬β ≤ ½ ² ₃ ⅷ ① ㊿ ∑∫√',
};
const vocabulary = Object.values(words).map(line => line.split(/\s+/));

const code = [
  'for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * b[i];\n\t}\n', 'def f(x):\n    return x**2 if x else None\n\n\n', '#include <vector>\r\n',
  '{"key": [1, 2.5e-3, null, true], "s": "a\\n\\"b\\""}', '<div class="x">&nbsp;</div>\n', 'SELECT * FROM t WHERE a >= 10;', '// TODO(x): ...\n',
  '\\frac{1}{2}', 'https://example.com/a/b?c=d&e=%20#f', 'C:\\Users\\x', '    ', '=====', '-->', '!=', '::', '/**/', '$HOME', '@a.b', '0x1F', '```\n',
];
const spaces = [' ', '  ', '   ', '\t', '\n', '\r', '\r\n', '\n\n', ' \n', '\n ', '\v', '\f', '\u0085', '\u00a0', '\u1680', '\u2003', '\u2028',
  '\u2029', '\u202f', '\u205f', '\u3000', '\u180e', '\u200b', '\ufeff', '\u2060'];
const emoji = ['👩‍👩‍👧', '😀', '🏳️‍🌈', '👍🏽', '🇩🇪', '❤️', '1️⃣', '🧑🏿‍🚀', '🫠', '🫩', '©', '☃', '\u{1f6dc}', '🪿'];
const contractions = ["'s", "'S", "'t", "'re", "'RE", "'Ve", "'m", "'LL", "'d", "'ſ", "’s", "'", "''", "'x", " 's", "'tis"];
const odd = ['\u0000', '\u0001', '\u001b', '\u007f', '\u00ad', '\u061c', '\u200d', '\u200e', '\u202e', '\ufffd', '\ufffe', '\uffff', '\u{1ffff}', '\ue000',
  '\u{f0000}', '\u{10ffff}', '\u{e0001}', '\u{e0041}', 'ï¿½', 'Ã©', 'Ġ', 'Ċ', 'Ġthe', '\\x80', '%ff', '\u2028', '\ufdfa', 'ﬁ', 'ŉ', 'ǆ', 'ǅ', '\u0345'];
const blocks = [[0x20, 0x7e], [0xa0, 0x24f], [0x250, 0x36f], [0x370, 0x52f], [0x530, 0x7ff], [0x800, 0x9ff], [0xa00, 0xdff], [0xe00, 0x10ff],
  [0x1100, 0x13ff], [0x1400, 0x1aff], [0x1b00, 0x1fff], [0x2000, 0x2bff], [0x2c00, 0x2fff], [0x3000, 0x33ff], [0x3400, 0x9fff], [0xa000, 0xabff],
  [0xac00, 0xd7ff], [0xf900, 0xffff], [0x10000, 0x10fff], [0x11000, 0x12fff], [0x13000, 0x16fff], [0x17000, 0x1afff], [0x1b000, 0x1d0ff],
  [0x1d100, 0x1d7ff], [0x1d800, 0x1efff], [0x1f000, 0x1fbff], [0x20000, 0x323af], [0xe0000, 0xe01ef]];
const marks = [[0x300, 0x36f], [0x591, 0x5c7], [0x610, 0x61a], [0x64b, 0x65f], [0x93c, 0x94d], [0xe38, 0xe4d], [0x1ab0, 0x1abd], [0x1dc0, 0x1dff],
  [0x20d0, 0x20f0], [0xfe20, 0xfe2f], [0x3099, 0x309a], [0xf71, 0xf81]];

const several = (random, low, high, one) => Array.from({length: random.in(low, high)}, one).join('');
const character = (random, ranges) => String.fromCodePoint(random.in(...random.pick(ranges)));
const repeat = (random, text) => text.repeat(random.chance(0.1) ? random.in(50, 300) : random.in(1, 12));

function piece(random, added) {
  switch (random.below(16)) {
    case 0: case 1: case 2: {
      const language = random.pick(vocabulary), between = random.pick([' ', ' ', ' ', '', '-', ', ', '_', '\n']);
      return Array.from({length: random.in(1, 12)}, () => random.pick(language)).join(between);
    }
    case 3: case 4: return random.pick(code);
    case 5: case 6: return several(random, 1, 4, () => random.pick(spaces));
    case 7: return repeat(random, random.pick(spaces));
    case 8: return several(random, 1, 10, () => random.pick('0123456789٣५½²Ⅷ'.match(/./gu)));
    case 9: return random.pick(contractions);
    case 10: return several(random, 1, 3, () => random.pick(emoji));
    case 11: return random.pick(['e', 'a', 'A', '가', 'か', 'क', 'ё', '\u1100', '\u1e9b', '\u0b47', '']) + several(random, 1, 5, () => character(random, marks));
    case 12: return random.pick(odd);
    case 13: { const block = [random.pick(blocks)]; return several(random, 1, 8, () => character(random, block)); }
    case 14: return added.length > 0 ? random.pick(['', '', ' ', '\n', 'a', '_', '  ']) + random.pick(added) + random.pick(['', '', ' ', '\n', 'a', '  '])
                                     : random.pick(contractions);
    default: return repeat(random, random.pick([...'aAzZ .,-=*#!éß中の가', '😀', '\u0301', 'ab', '12', '\r\n', '{}', ' a']));
  }
}

// Some end in the middle of an added token.
export function text(random, added) {
  let all = several(random, 1, random.chance(0.1) ? 40 : 10, () => piece(random, added));
  if (added.length > 0 && random.chance(0.05)) { const token = random.pick(added); all += token.slice(0, random.in(1, token.length)); }
  return all.toWellFormed();
}

// Every character of Unicode that is not a surrogate, between others.
export function* everyCharacter() {
  const around = ['', 'a', ' ', '1', '.'];
  for (let first = 0; first < 0x110000; first += 64) {
    if (first >= 0x40000 && first < 0xe0000) continue;
    if (first >= 0xe1000 && first < 0x10ff00) continue;
    for (const between of around) {
      let all = between;
      for (let code = first; code < first + 64; ++code) if (code < 0xd800 || code > 0xdfff) all += String.fromCodePoint(code) + between;
      yield all;
    }
  }
}
