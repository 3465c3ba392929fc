import gzip
import re

import tensorflow as tf
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.pipelines.corpus.sentence_splitting import split_sentences


def split(*paragraphs: str) -> list[list[str]]:
    rows = split_sentences(tf.constant(paragraphs)).to_list()
    return [[sentence.decode() for sentence in row] for row in rows]


# A bar stands where a sentence ends.
EXAMPLES = """
It ends here.| It begins there.
Really?| Yes!| No?!| And "so on."| (Brackets, too.)| "Quotes" end it.
He asked: "Why?" and left.| 'Go!' she said.| “Stay.”| ‘Now.’
Mr. Smith met Mrs. Jones and Dr. No at St. Mary's.| They talked.
Messrs. J. R. R. Tolkien and C. S. Lewis wrote it.| A. Nother did not.
He lives in the U.S. now.| She left the U.S.| The rest stayed in Washington, D.C.| It rained.
See e.g. Fig. 3, i.e. the one on pp. 5 to 7, vs. Table 2, cf. No. 5.| Then read on.
It cost $3.50, or 1,234.56 in all.| Version 2.0.1 came in 1999.| 20 people used it.
Well... perhaps.| So it goes...| And on…| Truly.
It was mine, said I.| Then it was yours.
It was Sam's.| Both knew.
1. The first.| 2. The second.| (3. is none.)
Send it to me@example.com or www.example.com.| Thank you.
¿Qué?| ¡No!| El Sr. Pérez vino.
« Oui. »| Il partit.| — Non ! dit-elle.| Où ?| Là.
Am 3. Oktober kam z. B. Dr. Müller.| Er blieb bis zum 5. Mai.| Das war alles.
Он родился в г. Москва.| Это А. С. Пушкин.| Да?| Это был я.| Нет.
Τι είναι αυτό;
안녕하세요.| import 문입니다.| 그는 "간다."라고 말했다.| 정말요?| 네.| 3.14는 수입니다.| 끝!
你好！|我是学生。|“真的吗？”|是的……也许不是。|我不信.|真的吗?|真的。
これはペンです。|「はい。」と彼は言った。|本当ですか?|はい!|『いいえ。』
यह है।| वह क्या है?| ठीक।
هل هذا صحيح؟| نعم.
ประเทศไทย พ.ศ. 2500 สวัสดี
ሰላም ነው።| እሱ መጣ፧| አዎ።|«አይ።»| ደህና።
វាជាសៀវភៅ។| គាត់មក។|ចប់៕
དེ་ནི་དཔེ་ཆ་རེད།| ཁོ་ཡོང་།|ལེགས་སོ༎
ဒါက စာအုပ်ပါ။| သူလာတယ်။|ဟုတ်တယ်။
""".strip().splitlines()


@for_each("marked", *EXAMPLES)
def test_where_sentences_end(marked):
    sentences = [sentence.strip() for sentence in marked.split("|")]
    assert split(marked.replace("|", "")) == [sentences]


def test_hard_wrapped_lines_and_any_white_space():
    wrapped = "\n  In the end,\n  Mr.\n  Bennet left.\t He\u00a0came\u3000back\r\nsoon.\n\n"
    assert split(wrapped) == [["In the end, Mr. Bennet left.", "He came back soon."]]


# Bits of text that the rules are about, white space and control characters.
RULED = [". ", ".", "...", "! ", "? ", "。", "！」", ' "', '" ', "(", ") ", "\n", " \x0b "]
RULED += ["\x1c", "\x00", "Mr. ", "J. ", "U.S. ", "The ", "e.g. ", "1. ", "I ", "3. Mai ", "다. "]
RULED += ["は", "」", "と", "中", "พ.", "\u0301", "\u200f"]
PIECES = st.text(max_size=12) | st.sampled_from(RULED)
PARAGRAPHS = st.lists(PIECES, max_size=20).map("".join)


@given(st.lists(PARAGRAPHS, min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_nothing_is_lost(paragraphs):
    for paragraph, sentences in zip(paragraphs, split(*paragraphs), strict=True):
        assert "".join("".join(sentences).split()) == "".join(paragraph.split())
        for sentence in sentences:
            assert sentence == " ".join(sentence.split()) != ""


@given(st.lists(PARAGRAPHS, min_size=1, max_size=10))
@settings(max_examples=20, deadline=None)
def test_a_paragraph_is_split_alone_as_in_a_batch(paragraphs):
    assert split(*paragraphs) == [split(paragraph)[0] for paragraph in paragraphs]


def precision_and_recall(documents: list[list[str]]) -> tuple[float, float]:
    """Of the boundaries inside documents, given as lists of sentences that were one a line."""

    def boundaries(sentences: list[str]) -> set[int]:
        """By the number of characters before them that are not white space."""
        ends, end = set(), 0
        for sentence in sentences[:-1]:
            ends.add(end := end + len("".join(sentence.split())))
        return ends

    expected = [boundaries(sentences) for sentences in documents]
    found = [boundaries(row) for row in split(*(" ".join(sentences) for sentences in documents))]
    both = sum(len(a & b) for a, b in zip(expected, found, strict=True))
    return both / sum(map(len, found)), both / sum(map(len, expected))


def test_news(shared):
    documents = []
    for name in ("train", "test"):
        path = shared / "data" / "glue" / "MRPC" / f"msr_paraphrase_{name}.txt"
        rows = [line.split("\t") for line in path.read_text("utf-8-sig").split("\n")[1:-1]]
        sentences = [row[3] for row in rows if re.search(r"""[.!?]["')]*$""", row[3])]
        documents += [sentences[i : i + 6] for i in range(0, len(sentences), 6)]
    precision, recall = precision_and_recall(documents)
    assert precision > 0.995 and recall > 0.995


def test_korean(shared):
    text = gzip.decompress((shared / "data" / "corpus" / "korean_docs.txt.gz").read_bytes())
    runs: list[list[str]] = [[]]  # of lines that end in a full stop, but for the last of each
    for line in text.decode().splitlines():
        runs[-1].append(line)
        if not re.search(r"[.!?]$", line):
            runs.append([])
    precision, recall = precision_and_recall(runs)
    assert precision > 0.98 and recall > 0.95
