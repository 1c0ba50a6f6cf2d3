"""The template environment, on templates of published models and on small ones that show one thing each."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from octavo.text.chat_template import CHATML, ChatTemplate, ChatTemplateError, chat_template_of
from octavo.text.tokenizer import Tokenizer
from support.toy_tokenizer import tokenizer_metadata

TEMPLATES = Path(__file__).parents[2] / "data" / "chat_templates"
USER = {"role": "user", "content": "Hi\n"}
ANSWER = {"role": "assistant", "content": "Hello."}
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "a < b & 'é'", "parameters": {"type": "object"}},
}


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>")


def published(name: str) -> ChatTemplate:
    return template((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))


def test_smollm2_writes_its_system_message_where_there_is_none() -> None:
    assert published("HuggingFaceTB-SmolLM2-135M-Instruct").render([USER]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi\n<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "HuggingFaceTB-SmolLM2-135M-Instruct",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            "Qwen-Qwen2.5-7B-Instruct",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            "Qwen-Qwen3-0.6B",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            "microsoft-Phi-3.5-mini-instruct",
            "<|system|>\nBe brief.<|end|>\n<|user|>\nHi\n<|end|>\n<|assistant|>\nHello.<|end|>\n"
            "<|user|>\nHi\n<|end|>\n<|assistant|>\n",
        ),
        (
            "mistralai-Mistral-Nemo-Instruct-2407",
            "<s>[INST]Hi\n[/INST]Hello.</s>[INST]Be brief.\n\nHi\n[/INST]",
        ),
        (
            "ibm-granite-granite-3.3-2B-Instruct",
            "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n"
            "<|start_of_role|>user<|end_of_role|>Hi\n<|end_of_text|>\n"
            "<|start_of_role|>assistant<|end_of_role|>Hello.<|end_of_text|>\n"
            "<|start_of_role|>user<|end_of_role|>Hi\n<|end_of_text|>\n"
            "<|start_of_role|>assistant<|end_of_role|>",
        ),
    ],
)
def test_a_conversation_under_published_templates(name: str, expected: str) -> None:
    system = {"role": "system", "content": "Be brief."}
    assert published(name).render([system, USER, ANSWER, USER]) == expected


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_every_published_template_renders_what_it_is_given(path: Path) -> None:
    text = template(path.read_text(encoding="utf-8")).render([USER, ANSWER, {**USER, "content": "And you?"}])
    assert text.index("Hi") < text.index("Hello.") < text.index("And you?")


def test_tools_are_written_as_json_without_escapes_for_html() -> None:
    text = published("Qwen-Qwen2.5-7B-Instruct").render([USER], tools=[TOOL])
    assert (
        '<tools>\n{"type": "function", "function": {"name": "add", "description": "a < b & \'é\'", '
        '"parameters": {"type": "object"}}}\n</tools>'
    ) in text


def test_variables_of_the_template_reach_it() -> None:
    qwen3 = published("Qwen-Qwen3-0.6B")
    assert qwen3.render([USER], enable_thinking=False).endswith("<think>\n\n</think>\n\n")
    assert "think" not in qwen3.render([USER])


def test_no_generation_prompt_where_none_is_wanted() -> None:
    assert template(CHATML).render([USER], add_generation_prompt=False) == (
        "<|im_start|>user\nHi\n<|im_end|>\n"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  {% if true %}\nx\n  {% endif %}\n{% endif %}\ny\n", "x\ny"),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% continue %}{% endif %}{{ m }}{% endfor %}", "13"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "aHi\nb"),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ '<&>' }}", "<&>"),
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{{ missing }}{{ tools is none }}{{ documents is none }}", "TrueTrue"),
        ("{{ strftime_now('%Y') }}", str(datetime.now().year)),
        ("{% for k, v in messages[0].items() %}{{ k }},{% endfor %}", "role,content,"),
    ],
)
def test_the_environment_is_the_one_that_templates_expect(source: str, expected: str) -> None:
    assert template(source).render([USER]) == expected


def test_a_refusal_carries_the_templates_words() -> None:
    with pytest.raises(ChatTemplateError, match=r"^roles must alternate$"):
        template("{{ raise_exception('roles must alternate') }}").render([USER])
    with pytest.raises(ChatTemplateError, match="must alternate user/assistant"):
        published("mistralai-Mistral-Nemo-Instruct-2407").render([USER, USER])


@pytest.mark.parametrize("content", [None, 3, [{"type": "text", "text": "Hi"}], {"a": 1}])
def test_content_that_the_template_cannot_use_is_a_clear_error(content: object) -> None:
    with pytest.raises(ChatTemplateError, match="cannot render these messages"):
        template(CHATML).render([{"role": "user", "content": content}])


def test_a_message_without_content_is_a_clear_error() -> None:
    with pytest.raises(ChatTemplateError, match="content"):
        template(CHATML).render([{"role": "user"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ (messages | attr('__class__')).__base__ }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_a_template_cannot_reach_out_of_its_box(source: str) -> None:
    messages = [USER]
    with pytest.raises(ChatTemplateError):
        template(source).render(messages)
    assert messages == [USER]


def test_a_broken_template_is_named_with_its_line() -> None:
    with pytest.raises(ChatTemplateError, match="broken at line 2"):
        template("{{ 1 }}\n{% if %}")


def test_the_template_of_a_model_is_its_own_else_chatml_else_none() -> None:
    metadata = tokenizer_metadata(300)
    tokenizer = Tokenizer.from_gguf(metadata)
    own = chat_template_of({"tokenizer.chat_template": "{{ eos_token }}"}, tokenizer)
    assert own is not None
    assert own.render([USER]) == "<|endoftext|>"
    chatml = chat_template_of({}, tokenizer)
    assert chatml is not None
    assert chatml.source == CHATML
    tokens = [f"{text}?" if text == "<|im_start|>" else text for text in metadata["tokenizer.ggml.tokens"]]
    other = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.tokens": tokens})
    assert chat_template_of({}, other) is None
