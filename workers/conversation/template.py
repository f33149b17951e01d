"""Converts messages to tokens with a model directory's tokenizer and chat template, without torch.

A conversation grows by what the template appends and is never rendered again as a whole:

    opening(first)  s₁  tail(new)  s₂  tail(new)  s₃ …          sₖ: sampled by a policy

`opening` ends in the generation prompt, `tail` begins with what closes the assistant's turn.
`check_append_only` proves at start that this equals rendering everything at once.
"""

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from agentrl.core.errors import ConfigError
from agentrl.envs.contract import Message, Tool, ToolCall, strings
from agentrl.workers.conversation.jinja_sandbox import create_environment
from agentrl.workers.conversation.toolcalls import STYLES, Style, parse

TEMPLATE = "chat_template.jinja"
_ANSWER = "⁂answer⁂"  # stands for an assistant's text
_JOINER = "\u2060"  # has no width
_PROBE = strings("look", "Look at a thing.", "thing")


class ChatTemplate:
    """A tokenizer and a chat template.

    `end_id`: the token that closes an assistant's turn when a tool answers; `stop_ids`: every token
    at which a policy stops, `end_id` among them. `vocab_size` counts added tokens too.
    """

    def __init__(
        self,
        source: Path,
        tokenizer: Tokenizer,
        template: Template,
        specials: Mapping[str, str],
        stops: Collection[int] = (),
    ) -> None:
        """`specials`: `bos_token` and others; `stops`: beside the token that ends a turn.

        Raises ConfigError if no token ends a turn.
        """
        self.source = source
        self.tokenizer = tokenizer
        self._template = template
        self._specials = specials
        added = tokenizer.get_added_tokens_decoder()
        self._special_tokens = [each.content for each in added.values() if each.special]
        self.end_id = self._end()
        self.stop_ids = frozenset({self.end_id, *stops})
        turns = self.stop_ids.union(self._openers()).intersection(added)
        self._special_tokens += [added[n].content for n in sorted(turns) if not added[n].special]
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)

    @classmethod
    def load(cls, model_dir: Path, chat_template: str = "") -> "ChatTemplate":
        """Load the template of a model directory, or the file that replaces it.

        Raises ConfigError if a file is missing or broken.
        """
        path = model_dir / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_str(path.read_text("utf-8"))
            tokenizer.no_truncation()
            tokenizer.no_padding()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}", hint=_HINT) from error
        except Exception as error:  # the tokenizers library raises nothing narrower
            raise ConfigError(f"{path}: {error}", hint=_HINT) from error
        config = _json(model_dir / "tokenizer_config.json")
        compiled = _compile(model_dir, config, chat_template)
        eos = _json(model_dir / "generation_config.json").get("eos_token_id")
        stops = [eos] if isinstance(eos, int) else eos or ()
        return cls(model_dir, tokenizer, compiled, _specials(config), stops)

    def _end(self) -> int:
        """Return the end token: the one that the template puts after an assistant's text."""
        tail = self.encode(self.tail([_TOOL], [_PROBE]))
        if not tail or tail[0] not in self.tokenizer.get_added_tokens_decoder():
            raise ConfigError(
                f"{self.source}: the chat template ends assistant turns without a special token",
                hint=_ENDING,
            )
        return tail[0]

    def _openers(self) -> list[int]:
        """Return the tokens before a user's text: a model may have added them as ordinary ones."""
        before, _, _ = self.tail([Message("user", _ANSWER)], []).partition(_ANSWER)
        return self.encode(before)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], generate: bool) -> str:
        """Render a whole conversation, with the generation prompt if `generate`.

        Special tokens come only from the template; those in messages and tools are `defused`.
        """
        return self._render([self._plain(message) for message in messages], tools, generate)

    def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], generate: bool
    ) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=[self._defuse_value(tool.schema()) for tool in tools] or None,
                add_generation_prompt=generate,
                **self._specials,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self.source}: the chat template failed: {error}", hint=_OWN
            ) from error

    def tail(self, new: Sequence[Message], tools: Sequence[Tool]) -> str:
        """Render what follows an assistant's text when `new` answers it, with the generation
        prompt.

        It is rendered after one short turn, so the cost depends on the new messages only.
        """
        turn = [Message("user", "?"), Message("assistant", _ANSWER)]
        _, _, tail = self.render([*turn, *new], tools, generate=True).partition(_ANSWER)
        return tail

    def check_append_only(self) -> None:
        """Raise ConfigError if rendering turn by turn differs from rendering all at once.

        Only tools answer here: after a user's answer some templates add a thought to earlier turns.
        """
        for first in _FIRSTS:
            whole, pieces = list(first), self.render(first, [_PROBE], generate=True)
            for new in _ANSWERS:
                pieces += _ANSWER + self.tail(new, [_PROBE])
                whole += [Message("assistant", _ANSWER), *new]
                if pieces != self.render(whole, [_PROBE], generate=True):
                    raise ConfigError(
                        f"{self.source}: the chat template rewrites earlier turns", hint=_OWN
                    )

    def check(self, style: Style) -> None:
        """Raise ConfigError if the template cannot be used with this call style.

        With `plain` the policy knows its tools, so the template may leave them out.
        """
        self.check_append_only()
        if style != "plain":
            self.check_shows_tools()

    def check_embedded(self, vocabulary: int | None) -> None:
        """Raise ConfigError if a prompt or a stop has a token beyond this many; None: unknown."""
        text = self.render(_FIRSTS[0], [_PROBE], generate=True) + self.tail([_TOOL], [_PROBE])
        largest = max(self.stop_ids.union(self.encode(text)))
        if vocabulary is not None and largest >= vocabulary:
            raise ConfigError(
                f"{self.source}: token {self.tokenizer.id_to_token(largest)} has the ID {largest}, "
                f"the model embeds {vocabulary} tokens",
                hint="call resize_token_embeddings(len(tokenizer)) and save the model again, "
                "or choose a template without this token",
            )

    def check_shows_tools(self) -> None:
        """Raise ConfigError if the first prompt does not contain the names of the tools."""
        for first in _FIRSTS:
            shown = self.render(first, [_PROBE], generate=True).count(_PROBE.name)
            if shown <= self.render(first, [], generate=True).count(_PROBE.name):
                raise ConfigError(
                    f"{self.source}: the chat template leaves out the tools",
                    hint="import the model with `agentrl model import`, or set model.chat_template",
                )

    def call_style(self) -> Style | None:
        """Return the style in which the template writes a tool call; None: it writes none."""
        call = ToolCall(_PROBE.name, {"thing": "cup"})
        try:
            text = self.render_call(call, [_PROBE])
        except ConfigError:
            return None
        return next((style for style in STYLES if parse(text, [_PROBE], style) == [call]), None)

    def render_call(self, call: ToolCall, tools: Sequence[Tool]) -> str:
        """Render an assistant's turn with a call, and decode it as if a policy had sampled it.

        Raises ConfigError if the template fails.
        """
        function = {"name": call.name, "arguments": dict(call.arguments)}
        called = {"id": "call00001", "type": "function", "function": function}
        turn = {"role": "assistant", "content": "", "tool_calls": [called]}
        asked = self._plain(Message("user", "?"))
        text = self._render([asked, turn], tools, generate=False)
        before = self._render([asked], tools, generate=False)
        return self.decode(self.encode(text.removeprefix(before)))

    def encode(self, text: str) -> list[int]:
        """Return the token ids. Special tokens in the text are recognised; none is added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def defuse(self, text: str) -> str:
        """Break up special tokens in a text, invisibly, so that a message cannot inject one."""
        for token in self._special_tokens:
            text = text.replace(token, token[0] + _JOINER + token[1:])
        return text

    def _plain(self, message: Message) -> dict[str, str]:
        plain = {"role": message.role, "content": self.defuse(message.content)}
        return plain | {"name": self.defuse(message.name)} if message.name else plain

    def _defuse_value(self, value: Any) -> Any:
        """Defuse every text in a JSON value."""
        if isinstance(value, str):
            return self.defuse(value)
        if isinstance(value, list):
            return [self._defuse_value(each) for each in value]
        if isinstance(value, dict):
            return {self.defuse(key): self._defuse_value(each) for key, each in value.items()}
        return value

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode sampled tokens, without special tokens and ids outside the vocabulary."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return what each sampled token adds to the text; empty for a part of a character.

        The last one holds what the turn leaves of an unfinished character, or the whole text if its
        tokens cannot be decoded one by one.
        """
        stream, text = DecodeStream(skip_special_tokens=True), self.decode(token_ids)
        try:
            found = [stream.step(self.tokenizer, each) or "" for each in token_ids]
        except Exception:  # tokenizers raises nothing narrower, for bytes that are no character
            return [""] * (len(token_ids) - 1) + [text]
        joined = "".join(found)
        if found and text.startswith(joined):
            found[-1] += text[len(joined) :]
        return found


_HINT = "name a model directory that holds tokenizer.json and a chat template"
_OWN = "set model.chat_template to a template that shows tools and never changes earlier turns"
_ENDING = (
    "set model.chat_template to a template that ends each assistant turn with a special token, "
    "such as <|im_end|>"
)
_USER = Message("user", "What is it?")
_FIRSTS = ((_USER,), (Message("system", "You act."), _USER))
_TOOL = Message("tool", "It is blue.", "look")
_ANSWERS = ((_TOOL,), (_TOOL, Message("tool", "[(3,)]", "look")), (_TOOL,))


def _json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file; empty if there is no file. Raises ConfigError."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}", hint=_HINT) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object", hint=_HINT)
    return value


def read_template(path: Path) -> str:
    """Return the text of a template. Raises ConfigError."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"model.chat_template: {path}: {error}", hint="set it to a readable file"
        ) from error


def replace_template(directory: Path, chat_template: str) -> None:
    """Replace the template of a model directory by the file, if one is named."""
    if chat_template:
        (directory / TEMPLATE).unlink(missing_ok=True)  # it may be linked to another directory's
        shutil.copyfile(chat_template, directory / TEMPLATE)


def _compile(model_dir: Path, config: Mapping[str, Any], named: str) -> Template:
    """Compile the template of the given file, else the model's, from its file or its `config`."""
    path = Path(named) if named else model_dir / TEMPLATE
    text = read_template(path) if named or path.exists() else _stored(config)
    if not isinstance(text, str):
        raise ConfigError(f"{model_dir}: there is no chat template", hint=_OWN)
    try:
        return create_environment().from_string(text)
    except TemplateError as error:
        source = path if named else model_dir
        raise ConfigError(f"{source}: chat template: {error}", hint=_HINT) from error


def _stored(config: Mapping[str, Any]) -> Any:
    """Return the template in a tokenizer's configuration; of several, the one for tools."""
    stored = config.get("chat_template")
    if not isinstance(stored, list):
        return stored
    named = {each.get("name"): each.get("template") for each in stored if isinstance(each, dict)}
    return named.get("tool_use", named.get("default"))


def _specials(config: Mapping[str, Any]) -> dict[str, str]:
    """Return `bos_token` and others, which are texts or objects with `content`."""
    named = {name: value for name, value in config.items() if name.endswith("_token")}
    texts = {n: v.get("content") if isinstance(v, dict) else v for n, v in named.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
