"""Conversations, templates and random templates to compare engines on."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city; \"now\" or later.\nUnits: <°C> & <°F>",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "e.g. Zürich, 東京"},
                    "days": {"type": "integer", "minimum": 1, "maximum": 18446744073709551615, "default": 1},
                    "unit": {"type": ["string", "null"], "enum": ["C", "F", None]},
                    "exact": {"type": "number", "multipleOf": 0.1, "exclusiveMaximum": 1e22},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "description": "", "parameters": {"type": "object", "properties": {}}}},
]


def call(name, arguments, number=1):
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations():
    """Titles and variables of a rendering."""
    arguments = {"city": "Zürich", "days": 3, "exact": 1.5, "unit": None, "deep": [{"a": [True, False]}]}
    text_arguments = '{"city": "Zürich", "days": 3}'
    system = {"role": "system", "content": "Be brief.\n\n"}
    hello = {"role": "user", "content": "  Hello <b>you</b> & 'me' \"now\" 🙂\n"}
    answer = {"role": "assistant", "content": "Hi."}
    thought = {"role": "assistant", "content": "It is 4.", "reasoning_content": "2 + 2\n= 4\n"}
    inline = {"role": "assistant", "content": "<think>\nwell\n</think>\n\nIt is 5."}
    more = {"role": "user", "content": "And more?"}
    result = {"role": "tool", "content": '{"temp": 21.5}', "tool_call_id": "call_1"}
    histories = {
        "one turn": [hello],
        "system": [system, hello],
        "turns": [system, hello, answer, more],
        "two user turns": [hello, more],
        "reasoning": [hello, thought, more],
        "last reasoning": [hello, thought],
        "inline reasoning": [hello, inline, more, inline],
        "late system": [hello, answer, system, more],
        "empty answer": [hello, {"role": "assistant", "content": ""}, more],
        "no messages": [],
        "unknown role": [{"role": "critic", "content": "No."}],
        "no role": [{"content": "No."}],
        "null content": [hello, {"role": "assistant", "content": None}, more],
        "number content": [{"role": "user", "content": 5}],
        "parts": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}],
        "developer": [{"role": "developer", "content": "Be kind."}, hello],
    }
    for how, given in (("object", arguments), ("text", text_arguments)):
        for what, content in (("null", None), ("empty", ""), ("some", "Let me see.")):
            calls = {"role": "assistant", "content": content, "tool_calls": [call("get_weather", given), call("stop", {} if how == "object" else "{}", 2)]}
            again = {"role": "assistant", "content": content, "reasoning_content": "hm", "tool_calls": [call("get_weather", given, 3)]}
            histories[f"tool calls, {how} arguments, {what} content"] = [system, hello, calls, result, {**result, "content": "done"}, answer, more]
            histories[f"tool calls in a row, {how}, {what}"] = [hello, calls, result, result, again, result]
    for title, messages in histories.items():
        for tools in (None, TOOLS):
            for prompt in (True, False):
                for extra in ({}, {"enable_thinking": False}, {"enable_thinking": True, "thinking": True}):
                    if extra and not prompt:
                        continue
                    variables = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt, **extra}
                    yield f"{title}, {'tools' if tools else 'no tools'}, {prompt}, {extra}", variables


VARIABLES = {
    "n": 7,
    "m": -3,
    "z": 0,
    "x": 2.5,
    "big": 12345678901234567890123,
    "t": True,
    "f": False,
    "none": None,
    "s": "Hello wörld",
    "e": "",
    "lines": " one\r\n\ttwo \n\nthree ",
    "quotes": "it's \"q\"\\",
    "odd": "a\x00b\u200bc\u00a0d\x7f🙂",
    "xs": [3, 1, 2, 1],
    "ws": ["b", "A", "c", "a"],
    "mixed": [1, "a", None, 2.0, True, [1, 2], {"k": "v"}],
    "empty": [],
    "d": {"b": 1, "a": [1, {"x": None}], "items": "mine", "long key": 2.0},
    "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25, "tags": []}, {"name": "Cy", "tags": ["x", "y"]}],
}


def fixed():
    """Templates that each pin one thing."""
    with open(__file__.replace("jinja_cases.py", "jinja_fixed.txt"), encoding="utf-8") as file:
        for template in file.read().split("\n====\n"):
            yield template, VARIABLES


def is_beyond_us(kind, text):
    """What our engine says it does not do, although Python does."""
    # Slices of numbers that are constants are errors too: Python's Jinja calculates them in another way than the rest.
    return kind == "error" and any(
        words in text for words in ("more than 64 bits", "is not supported", "complex numbers", "a format asks for too much", "takes an indent of at most", "takes a width of at most", "object is not subscriptable", "unhashable type: 'slice'", "'range object' has no attribute")
    )


# ---- Random templates

ATOMS = ["n", "m", "z", "x", "t", "f", "none", "s", "e", "lines", "quotes", "odd", "xs", "ws", "mixed", "empty", "d", "people", "nope",
         "big", "0", "1", "2", "-1", "3.5", "1e3", "true", "false", "none", "'a'", "'b c'", "\"it's\"", "[]", "[1, 2, 3]", "['x', 'y']",
         "(1, 2)", "(1,)", "()", "{}", "{'a': 1}", "{1: 'one', 'b': [2]}", "range(3)|list", "range(5, 0, -2)|list", "d.a", "d.b", "d['items']",
         "people[0]", "people[1].name", "xs[0]", "s[1]", "d.nope", "'1,2,3'", "'  pad  '", "'3.7'", "'12'"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FILTERS = ["abs", "capitalize", "count", "default('D')", "default('D', true)", "dictsort", "dictsort(by='value')", "dictsort(reverse=true)",
           "escape", "first", "float", "float(1.5)", "int", "int(9)", "items|list", "join", "join(', ')", "join('-', 'name')", "last",
           "length", "list", "lower", "upper", "title", "trim", "trim('a ')", "max", "min", "max(attribute='age')", "reverse|list", "reverse",
           "round", "round(1)", "round(2, 'floor')", "round(method='ceil')", "safe", "sort", "sort(reverse=true)", "sort(attribute='name')",
           "sort(case_sensitive=true)", "string", "sum", "sum(start=10)", "sum(attribute='age')", "tojson", "tojson(indent=2)",
           "tojson(ensure_ascii=true)", "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "unique|list", "wordcount", "indent",
           "indent(2, true)", "indent('> ', blank=true)", "replace('a', 'X')", "replace('l', '', 1)", "replace('', '-')", "truncate(6)",
           "truncate(7, true, '')", "center(15)", "batch(2)|list", "batch(2, 'f')|list", "slice(2)|list", "map('upper')|list",
           "map('string')|join('/')", "map(attribute='name')|list", "map(attribute='tags.0')|list", "map(attribute='age', default=0)|list",
           "map('default', 'q')|list", "select|list", "select('odd')|list", "select('string')|list", "select('gt', 1)|list",
           "reject('none')|list", "reject('equalto', 1)|list", "selectattr('tags')|list", "selectattr('age', 'defined')|list",
           "rejectattr('age', 'defined')|map(attribute='name')|list", "selectattr('name', 'in', ['Ann', 'Cy'])|list", "attr('upper')",
           "groupby('name')|list", "format(1)", "format('a', 'b')", "d", "list|length", "unique(true)|list", "groupby('tags')|length",
           "urlencode", "xmlattr", "xmlattr(false)", "filesizeformat", "filesizeformat(true)"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "sequence",
         "iterable", "callable", "odd", "even", "divisibleby 2", "divisibleby(3)", "eq 1", "ne 'a'", "equalto(2)", "gt 1", "lt(2)", "ge 2",
         "le 2", "in [1, 2, 'a']", "in 'abc'", "sameas none", "sameas true", "lower", "upper", "not none", "not defined", "not string",
         "escaped", "filter", "test"]
METHODS = ["upper()", "lower()", "title()", "capitalize()", "swapcase()", "casefold()", "strip()", "lstrip()", "rstrip()", "strip('H ')",
           "lstrip('abc')", "rstrip('d\\n ')", "split()", "split(' ')", "split('l')", "split('l', 1)", "split(none, 1)", "rsplit('l', 1)",
           "rsplit()", "split(maxsplit=1)", "splitlines()", "splitlines(true)", "startswith('H')", "endswith('d')", "startswith(('x', 'H'))",
           "endswith('d', 2)", "find('l')", "find('l', 4)", "rfind('l')", "find('zz')", "count('l')", "count('')", "index('o')",
           "replace('l', 'L')", "replace('l', 'L', 1)", "join(['a', 'b'])", "join(ws)", "isdigit()", "isalpha()", "isupper()", "islower()",
           "isspace()", "isalnum()", "isnumeric()", "isidentifier()", "istitle()", "format(1, a=2)", "zfill(8)", "ljust(15, '.')", "rjust(15)",
           "center(14, '*')", "partition(' ')", "rpartition('o')", "removeprefix('He')", "removesuffix('ld')", "expandtabs(4)", "get('a')",
           "get('zz')", "get('zz', 5)", "items()", "keys()", "values()", "items()|list", "keys()|list", "values()|list", "copy()", "count(1)",
           "index(1)", "append(1)", "pop()", "update({})", "is_integer()", "__class__", "nope", "a", "0", "name", "__len__()", "format"]
SUBSCRIPTS = ["0", "1", "-1", "99", "'a'", "'name'", "'nope'", "1:", ":2", ":-1", "::-1", "1:5:2", "-3:-1", "5:1:-2", "::2", ":", "none", "1.0", "true"]


def expression(chance, depth):
    if depth == 0 or chance.random() < 0.12:
        return chance.choice(ATOMS)
    kind = chance.randrange(13)
    inner = lambda: expression(chance, depth - 1)
    if kind == 1 and chance.random() < 0.2:
        return f"({inner()} ** {chance.choice(['2', '3', '-1', '0.5', 'n'])})"
    if kind <= 1:
        return f"({inner()} {chance.choice(BINARY)} {inner()})"
    if kind == 2:
        return f"{inner()} {chance.choice(BINARY)} {inner()} {chance.choice(BINARY)} {inner()}"
    if kind <= 5:
        return f"{inner()}|{chance.choice(FILTERS)}"
    if kind == 6:
        return f"({inner()} is {chance.choice(TESTS)})"
    if kind <= 8:
        return f"({inner()}).{chance.choice(METHODS)}"
    if kind == 9:
        return f"({inner()})[{chance.choice(SUBSCRIPTS)}]"
    if kind == 10:
        otherwise = f" else {inner()}" if chance.random() < 0.8 else ""
        return f"({inner()} if {inner()}{otherwise})"
    if kind == 11:
        return chance.choice(["not ", "-", "+"]) + inner()
    return chance.choice([f"[{inner()}, {inner()}]", f"({inner()}, {inner()})", f"{{'k': {inner()}, 'l': {inner()}}}", f"'%s|%5s' % ({inner()}, {inner()})",
                          f"'{{}} {{0!r}}'.format({inner()})" if chance.random() < 0.3 else f"[{inner()}]"])


LOOP = ["loop.index", "loop.index0", "loop.first", "loop.last", "loop.length", "loop.revindex", "loop.revindex0", "loop.previtem", "loop.nextitem",
        "loop.cycle('a', 'b')", "loop.changed(i)", "loop.depth", "loop"]
NAMES = ["i", "v", "w", "n", "s", "nope"]


def sign(chance):
    return chance.choice(["", "", "", "-", "+"])


def tag(chance, text):
    return "{%" + sign(chance) + " " + text + " " + sign(chance) + "%}"


def white(chance):
    return chance.choice(["", " ", "\n", "\n  ", "x\n", " y ", "\n\n", "\t\n "])


def statement(chance, depth):
    inner = lambda: block(chance, depth - 1)
    value = lambda: expression(chance, 1)
    kind = chance.randrange(12)
    if depth == 0 or kind <= 3:
        end = chance.choice(["}}", "}}", "-}}"])
        return chance.choice(["{{ ", "{{- "]) + chance.choice([value(), value(), chance.choice(NAMES), chance.choice(LOOP)]) + " " + end
    if kind == 4:
        return tag(chance, f"set {chance.choice(NAMES)} = {value()}")
    if kind == 5:
        otherwise = tag(chance, "else") + inner() if chance.random() < 0.5 else ""
        other = tag(chance, f"elif {value()}") + inner() if chance.random() < 0.3 else ""
        return tag(chance, f"if {value()}") + inner() + other + otherwise + tag(chance, "endif")
    if kind <= 7:
        over = chance.choice(["xs", "ws", "people", "d", "range(3)", "s[:3]", "d.items()", "d|dictsort", "empty", "nope", "xs[::-1]", "xs|map('string')"])
        test = chance.choice(["", "", f" if {chance.choice(['i != 1', 'i is string', 'loop is defined', 'i', value()])}"])
        target = "i, v" if over.startswith("d.") or over.startswith("d|") else "i"
        stop = chance.choice(["", "", "", tag(chance, f"if {value()}") + tag(chance, chance.choice(["break", "continue"])) + tag(chance, "endif")])
        otherwise = tag(chance, "else") + inner() if chance.random() < 0.3 else ""
        return tag(chance, f"for {target} in {over}{test}") + inner() + stop + inner() + otherwise + tag(chance, "endfor")
    if kind == 8:
        return tag(chance, f"set {chance.choice(NAMES)}{chance.choice(['', ' | upper', ' | trim | length'])}") + inner() + tag(chance, "endset")
    if kind == 9:
        name = chance.choice(["f", "g"])
        made = tag(chance, f"macro {name}(i, v={value()}, w=none)") + inner() + tag(chance, "endmacro")
        return made + "{{ " + f"{name}({chance.choice(['', '1', '1, 2', 'i=xs', 'n, w=s', '1, 2, 3, 4', 'q=1'])})" + " }}"
    if kind == 10:
        return chance.choice([tag(chance, f"with v = {value()}, w = {value()}") + inner() + tag(chance, "endwith"),
                              tag(chance, "filter upper") + inner() + tag(chance, "endfilter"),
                              tag(chance, "generation") + inner() + tag(chance, "endgeneration"),
                              tag(chance, "raw") + " {{ raw }} " + tag(chance, "endraw")])
    return chance.choice(["{#" + sign(chance) + " note " + sign(chance) + "#}", "{% set ns = namespace(a=1, i=n) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}",
                          tag(chance, f"if {value()}") + "{{ raise_exception('no: ' ~ n) }}" + tag(chance, "endif")])


def block(chance, depth):
    return "".join(white(chance) + statement(chance, depth) + white(chance) for _ in range(chance.randint(1, 3)))


def random_template(chance):
    if chance.random() < 0.6:
        return "{{ " + expression(chance, chance.choice([1, 2, 2, 3])) + " }}"
    return block(chance, chance.choice([1, 2, 2, 3]))
