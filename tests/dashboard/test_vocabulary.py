"""What a token reads as, beside the library that made the vocabulary."""

import json
from pathlib import Path

from running import ROOT
from tokenizers import Tokenizer

from agentrl.dashboard import vocabulary
from agentrl.dashboard.vocabulary import NONE, Vocabulary

TINY = ROOT / "models" / "tiny"
TEXT = 'take_action{"action":"go to desk 12"} — naïve λ 猫\n\ttwo  spaces'


def test_a_byte_level_vocabulary_reads_as_its_library_reads_it() -> None:
    library = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    words = vocabulary.read(TINY / "tokenizer.json")
    tokens = library.encode(TEXT, add_special_tokens=False).ids
    assert "".join(words.texts(tokens)) == TEXT
    assert len(words.texts(tokens)) == len(tokens)
    every = list(range(library.get_vocab_size()))
    alone = [library.decode([token], skip_special_tokens=False) for token in every]
    ours = ["".join(words.texts([token])) for token in every]
    differ = [(mine, theirs) for mine, theirs in zip(ours, alone, strict=True) if mine != theirs]
    assert all("\N{REPLACEMENT CHARACTER}" in theirs for _, theirs in differ)


def test_special_tokens_are_told_apart() -> None:
    words = vocabulary.read(TINY / "tokenizer.json")
    assert {words.texts([token])[0] for token in words.special} >= {"<|end|>", "<|assistant|>"}


def test_a_character_of_several_tokens_stands_at_the_last_of_them() -> None:
    cat = "猫".encode()
    words = Vocabulary({0: b"a", 1: cat[:1], 2: cat[1:], 3: b"b"}, frozenset())
    assert words.texts([0, 1, 2, 3]) == ["a", "", "猫", "b"]
    assert words.texts([1, 3]) == ["", "\N{REPLACEMENT CHARACTER}b"]


def test_a_token_that_is_not_there_stands_as_its_number() -> None:
    assert NONE.texts([7, 8]) == ["⟨7⟩", "⟨8⟩"]


def test_pieces_that_mark_spaces_are_read_as_text(tmp_path: Path) -> None:
    written = {
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"vocab": [["<unk>", 0.0], ["▁the", -1.0], ["<0x0A>", -2.0], ["猫", -3.0]]},
        "added_tokens": [{"id": 0, "content": "<unk>", "special": True}],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(written))
    words = vocabulary.read(tmp_path / "tokenizer.json")
    assert words.texts([1, 2, 3]) == [" the", "\n", "猫"]
    assert words.special == {0}


def test_what_is_no_vocabulary_is_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for written in ("", "[]", '{"stands": "in"}', '{"model": {"vocab": 3}}', "\x00" * 9):
        path.write_text(written)
        assert vocabulary.read(path) == NONE, written
    assert vocabulary.read(tmp_path / "none") == NONE


def test_the_first_directory_that_has_one_is_taken(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tokenizer.json").write_text("{}")
    places = ["s3://bucket/a", str(tmp_path / "a"), f"file://{tmp_path / 'b'}"]
    assert vocabulary.find(places) == tmp_path / "b" / "tokenizer.json"
    assert vocabulary.find(places[:2]) is None
