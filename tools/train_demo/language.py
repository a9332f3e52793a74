"""What the demo model is taught to talk about: facts, questions, lines to repeat, little stories.

Everything is made of pieces: strings that the tokenizer never joins with their neighbours, because each begins where a word does.
So the ids of a text are those of its pieces one after another, and rows can be made at a million tokens a second from a table of
pieces. `text_of` gives the text.
"""
import random
from dataclasses import dataclass

ADJECTIVES = """amber ancient azure brave bright broken bronze calm clever copper cold coral crimson crooked curious dark
distant dusty early empty faded fallen fierce frozen gentle giant golden green grey happy heavy hidden hollow humble iron ivory
jolly lonely long lost lucky marble merry misty narrow noble old orange pale patient plain polished proud purple quick quiet red
restless rough round royal rusty sacred scarlet secret shining silent silver simple sleepy slow small smooth soft stone strange
strong sunny swift tall tiny violet warm white wild wise wooden yellow young""".split()
OBJECTS = """anchor anvil apple arrow axe ball banner barrel basket bell book boot bottle bowl box bridge brush bucket button
cabin candle canoe carpet cart castle chair chain chest clock cloak coin compass crown cup dagger desk door drum engine feather
fence flute fork fountain garden gate glass globe glove hammer harp hat helmet horn house jar kettle key kite knife ladder lamp
lantern letter lock lute map mask mill mirror needle net oar organ oven paddle pearl pen pillow pipe plate pocket pot quilt ring
robe rope saddle sail scarf shield ship shoe spoon statue stove sword table tent thimble torch tower trumpet tunnel umbrella vase
violin wagon wheel whistle window""".split()
CREATURES = """badger bear beaver bee bull camel cat cow crab crane crow deer dog dolphin donkey dove dragon duck eagle eel elk
falcon ferret finch fox frog giraffe goat goose hare hawk hen heron horse hound jackal lamb lark lion lizard lynx mole monkey
moose moth mouse mule newt otter owl ox panther parrot pig pigeon pony puma rabbit ram raven robin rooster salmon seal shark sheep
snail snake sparrow spider squirrel stag stork swan tiger toad trout turtle viper walrus wasp weasel whale wolf wren
zebra""".split()
WORDS = """air all always and answer autumn before bells below beyond bird black blue boats bread brings brother build call
carry child circle city clear climb cloud come corn count crowd dance dawn day deep dream drink dust earth east evening every eyes
fall far father fear field find fire first fish flower follow forest forget free friend from full gift give gold good grain grass
hand hear heart high hill hold home honey hope hour hunt ice island journey joy keep king know lake land laugh law leaf learn
leave life light like listen little live look lord love make many mark meet milk moon morning mother mountain music name near
never new night north oak ocean open over paint path peace people play power price queen rain read rest river road rock roof root
run salt sand sea seed seven shadow sing sister sky sleep snow song south speak spring star stay stream summer sun teach ten thank
think three thunder time today together town tree true trust truth under until valley voice wait walk wall watch water wave west
wheat wind wine winter wish without wonder wood word work world year""".split()
SMALL_WORDS = """a an and are as at be but by for from had has he her his in is it not of on or she so that the they this to was
with""".split()
ANY_WORDS = (ADJECTIVES, OBJECTS, CREATURES, WORDS, SMALL_WORDS, SMALL_WORDS)
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
NAMES = "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Mary Nora Oscar Paul Ruth Sam Tom Vera".split()


def spaced(words):
    """Words after another word."""
    return [" " + w for w in words]


def after_nothing(words):
    """Words that begin a text."""
    return [words[0]] + spaced(words[1:])


@dataclass(frozen=True)
class Fact:
    """Something said once and asked later. `value` and `answer` are the same text, after a word and on its own."""

    kind: str  # passkey, code or motto
    subject: tuple  # pieces after "the passkey" / "the code of the" / "the motto of the"
    value: tuple
    answer: tuple

    @property
    def noun(self):
        return "passkey" if self.kind == "passkey" else f"{self.kind} of the"

    def statement(self, rng):
        """Pieces of a sentence whose first word may need a space in front: `first_word` sees to that; and where the value is."""
        head = rng.choice(("The ", "Remember that the ", "Note: the ", "You should know that the "))
        pieces = [f"{head}{self.noun}", *self.subject, " is ", *self.value, "."]
        if self.kind != "passkey":
            pieces[pieces.index(" is ")] = " is"  # A word brings its own space, a digit does not.
        return pieces, range(2 + len(self.subject), 2 + len(self.subject) + len(self.value))

    def question(self, rng):
        head, end = rng.choice((("What is the ", "?"), ("Tell me the ", "."), ("Give me the ", "."), ("Repeat the ", ".")))
        return [f"{head}{self.noun}", *self.subject, end]


def first_word(pieces, space):
    return [(" " + pieces[0]) if space else pieces[0], *pieces[1:]]


def passkey(rng):
    digits = tuple(str(rng.randrange(10)) for _ in range(5))
    return Fact("passkey", (), digits, digits)


def code(rng, taken):
    subject = fresh(rng, taken, OBJECTS)
    letter, digits = rng.choice(LETTERS), [str(rng.randrange(10)) for _ in range(3)]
    return Fact("code", subject, (" " + letter, *digits), (letter, *digits))


def motto(rng, taken):
    subject = fresh(rng, taken, CREATURES)
    words = rng.sample(WORDS, rng.randint(4, 8))
    return Fact("motto", subject, tuple(spaced(words)), tuple(after_nothing(words)))


def fresh(rng, taken, nouns):
    while True:
        subject = (" " + rng.choice(ADJECTIVES), " " + rng.choice(nouns))
        if subject not in taken:
            taken.add(subject)
            return subject


def facts(rng, count):
    """One passkey, and codes and mottos of different things, in random order."""
    taken = set()
    out = [passkey(rng)] + [code(rng, taken) if rng.random() < 0.6 else motto(rng, taken) for _ in range(count - 1)]
    rng.shuffle(out)
    return out


def fact_count(length):
    """How many facts a text of `length` tokens holds: 5 in 256 tokens, 140 in 32,768."""
    return max(2, round(5 * (length / 256) ** 0.687))


def line(rng):
    """A line of words, or of codes, to be said again."""
    kind = rng.random()
    if kind < 0.35:
        return after_nothing(rng.sample(WORDS, rng.randint(3, 10)))
    if kind < 0.75:
        return after_nothing([rng.choice(rng.choice(ANY_WORDS)) for _ in range(rng.randint(3, 12))])
    pieces = []
    for _ in range(rng.randint(1, 3)):
        pieces += [(" " if pieces else "") + rng.choice(LETTERS), *[str(rng.randrange(10)) for _ in range(rng.randint(1, 4))]]
    return pieces


def story(rng):
    """A request for a little story, and the story, as texts."""
    a, b = rng.sample(CREATURES, 2)
    name, other = rng.sample(NAMES, 2)
    mood, way = rng.choice(ADJECTIVES), rng.choice(("a road", "a river", "a forest", "a hill", "a small town", "the sea"))
    thing = f"{rng.choice(ADJECTIVES)} {rng.choice(OBJECTS)}"
    begin = rng.choice((f"Once upon a time there was a {mood} {a} called {name}.",
                        f"There was once a {a} named {name}, who was {mood}.",
                        f"Long ago, near {way}, lived a {mood} {a}. Its name was {name}."))
    want = rng.choice((f"Every day {name} looked for the {thing}.", f"{name} had lost a {thing} and was very sad.",
                       f"{name} wanted nothing more than a {thing}."))
    meet = rng.choice((f"One morning {name} met {other} the {b} by {way}.",
                       f"Then a {b} came along. It was {other}, an old friend.",
                       f"On {way} a {b} was waiting. \"I am {other},\" it said."))
    talk = rng.choice((f"\"Can you help me?\" asked {name}. \"Of course,\" said {other}.",
                       f"\"What are you looking for?\" asked {other}. \"For a {thing},\" said {name}.",
                       f"{other} listened to everything and thought for a long time."))
    act = rng.choice(("They walked all day and all night.", f"They went together to {way}.",
                      "They looked under every stone and behind every tree.", "It rained, but they did not stop."))
    find = rng.choice((f"At last they found the {thing} in the grass.",
                       f"In the evening {name} saw the {thing} shine in the water.",
                       f"Behind an old door stood the {thing}."))
    end = rng.choice((f"{name} was happy and thanked {other}.", "From that day on they were the best of friends.",
                      f"\"Now let us go home,\" said {name}, and so they did.",
                      f"{name} gave {other} some bread, and they laughed."))
    sentences = [begin, want, meet, talk, act, find, end]
    if rng.random() < 0.3:
        del sentences[rng.randrange(1, 6)]
    ask = rng.choice((f"Tell me a story about a {a}.", f"Tell me a little story about a {a} and a {b}.", "Tell me a story."))
    return ask, " ".join(sentences)


SMALL_TALK = (
    ("Hello!", "Hello! Give me a text and ask me about it."),
    ("Hi.", "Hello! Give me a text and ask me about it."),
    ("Who are you?", "I am a very small language model. I can find facts in long texts, repeat lines and tell little stories."),
    ("What can you do?", "I can find facts in long texts, repeat lines and tell little stories."),
    ("Thank you.", "You are welcome."),
    ("Goodbye.", "Goodbye!"),
)


def text_of(pieces):
    return "".join(pieces)


def examples(count):
    """Texts with all the words above, for the tokenizer's training."""
    rng = random.Random("examples")
    for _ in range(count):
        some = facts(rng, 3)
        yield " ".join(text_of(f.statement(rng)[0]) for f in some)
        yield text_of(some[0].question(rng)) + "\n" + text_of(some[0].answer)
        yield "\n".join(story(rng))
