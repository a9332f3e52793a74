"""The demo model's tokenizer: byte-level BPE cut as DeepSeek-V3 cuts text, trained on the corpus."""
import json

BEGIN, END, USER, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"
SPECIAL = (BEGIN, END, USER, ASSISTANT)  # Ids 0 to 3.
BEGIN_ID, END_ID, USER_ID, ASSISTANT_ID = range(4)

# The three patterns of DeepSeek-V3's tokenizer.json.
PATTERNS = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}"
    "{% elif message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '<｜Assistant｜>' + message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('the roles are system, user and assistant, not ' + message['role']) }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)


def train(paragraphs, vocab):
    """A tokenizers.Tokenizer with `vocab` tokens. Digits are never merged, so a number is copied digit by digit."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    def split(pattern):
        return pre_tokenizers.Split(Regex(pattern), "isolated")

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    cuts = [split(p) for p in PATTERNS]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split(r"\p{N}"), *cuts[1:], byte_level])
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(SPECIAL), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(paragraphs, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    assert tokenizer.get_vocab_size() == vocab
    assert [tokenizer.token_to_id(s) for s in SPECIAL] == [0, 1, 2, 3]
    return tokenizer


def config(max_length):
    """tokenizer_config.json."""
    def added(text):
        return {"__type": "AddedToken", "content": text, "lstrip": False, "normalized": False, "rstrip": False,
                "single_word": False}

    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": added(BEGIN),
        "eos_token": added(END),
        "pad_token": added(END),
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "tokenizer_class": "LlamaTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
    }


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2, ensure_ascii=False)
        f.write("\n")
