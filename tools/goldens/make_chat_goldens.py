#!/usr/bin/env python3
"""Writes tests/data/chat: conversations and snippets with jinja2's answers.

    make_chat_goldens.py [--out tests/data/chat]

The environment is the one that Hugging Face transformers compiles chat templates in; its own
function does it (transformers.utils.chat_template_utils). Inputs are written beside the answers, so
the files say all that the tests need.
"""

import argparse
import itertools
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import chat_snippets  # noqa: E402

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Looks up the weather, <now> & \"later\".",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "Town and country"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "description": "How many", "nullable": True},
                "tags": {"type": "array", "items": {"type": "string"}},
                "points": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                        "required": ["x", "y"],
                    },
                },
                "options": {
                    "type": "object",
                    "properties": {"deep": {"type": "boolean", "description": "Größe, 深い"}},
                    "required": ["deep"],
                },
            },
            "required": ["location"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}
RESPONDER = {
    "type": "function",
    "function": {
        "name": "query",
        "description": "Asks a table.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string", "description": "The question"}}, "required": ["q"]},
        "response": {"type": "object", "description": "Rows"},
    },
}

NESTED = {
    "location": "Zürich \"CH\"",
    "days": 3,
    "ratio": 0.5,
    "big": 12345678901234567890,
    "tiny": 1e-7,
    "flag": True,
    "off": False,
    "nothing": None,
    "list": [1, "two", [3.0, None], {"k": "v"}],
    "map": {"zeta": 1, "Alpha": {"b": [], "a": {}}},
    "code": "if (a < b && c > d) {\n\treturn '\\n';\n}",
    "brackets": "}])[{(",
}


def call(name, arguments, ident=None):
    entry = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": ident, **entry} if ident else entry


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text=None, **more):
    return {"role": "assistant", **({} if text is None else {"content": text}), **more}


def tool(text, **more):
    return {"role": "tool", "content": text, **more}


def conversations():
    """name -> (messages, tools)."""
    ask = user("What is the weather in Zürich?")
    one_call = assistant("", tool_calls=[call("get_weather", {"location": "Zürich"}, "c1")])
    answer = tool("{\"temperature\": 21}", tool_call_id="c1", name="get_weather")
    return {
        "one_turn": ([user("Hello")], None),
        "spaces": ([user("  \n Hello there \t\n")], None),
        "empty_user": ([user("")], None),
        "null_user": ([{"role": "user"}], None),
        "system": ([system(" Be brief. "), user("Hi")], None),
        "developer": ([{"role": "developer", "content": "Be brief."}, user("Hi")], None),
        "empty_system": ([system(""), user("Hi")], None),
        "multi_turn": ([user("1"), assistant("one"), user("2"), assistant("two"), user("3")], None),
        "ends_with_assistant": ([user("1"), assistant("one")], None),
        "consecutive_assistants": ([user("1"), assistant("one"), assistant("more"), user("2")], None),
        "consecutive_users": ([user("1"), user("2")], None),
        "late_system": ([user("1"), system("Now in French."), user("2")], None),
        "only_system": ([system("Be brief.")], None),
        "unicode": ([system("日本語で。"), user("Größe 🇨🇭 e\u0301 \u00a0\u3000 \u200b नमस्ते")], None),
        "markers": ([user("<bos><|turn>user\n<start_of_turn> <|im_start|> {{ x }} {% if %} {# #}"), assistant("<think>a</think>b"), user("go")], None),
        "think_in_content": ([user("1"), assistant("<think>\nhm\n</think>\n\nanswer"), user("2")], None),
        "channel_in_content": ([user("1"), assistant("<|channel>thought\nhm\n<channel|>answer"), user("2")], None),
        "reasoning": ([user("1"), assistant("one", reasoning="counting"), user("2"), assistant("two", reasoning="more\ncounting")], None),
        "tools_unused": ([ask], [WEATHER, CLOCK]),
        "tools_and_system": ([system("Be brief."), ask], [WEATHER, RESPONDER]),
        "tool_call": ([ask, one_call], [WEATHER]),
        "tool_result": ([ask, one_call, answer], [WEATHER]),
        "tool_round": ([ask, one_call, answer, assistant("21 degrees."), user("Thanks")], [WEATHER]),
        "tool_round_system": ([system("Be brief."), ask, one_call, answer, assistant("21 degrees.")], [WEATHER]),
        "tool_nested_arguments": ([ask, assistant("Looking.", tool_calls=[call("get_weather", NESTED, "c1"), call("clock", {}, "c2")])], [WEATHER, CLOCK]),
        "two_calls_two_results": ([ask, assistant(tool_calls=[call("get_weather", {"location": "A", "n": [True, None, 1.5]}, "c1"), call("clock", {}, "c2")]), tool("rain", tool_call_id="c1"), tool("noon", tool_call_id="c2")], [WEATHER, CLOCK]),
        "tool_with_reasoning": ([ask, assistant("", reasoning="I need the tool.", tool_calls=[call("clock", {}, "c1")]), tool("noon", tool_call_id="c1"), assistant("It is noon.", reasoning="Done.")], [CLOCK]),
        "tool_chain": ([ask, one_call, answer, assistant("", tool_calls=[call("clock", {}, "c2")]), tool("", tool_call_id="c2")], [WEATHER, CLOCK]),
        "tool_text_arguments": ([ask, assistant("", tool_calls=[call("clock", "not json {", "c1")])], [CLOCK]),
        "odd_role": ([user("1"), {"role": "critic", "content": "no"}, user("2")], None),
        "no_messages": ([], None),
    }


def settings():
    """(add_generation_prompt, enable_thinking)"""
    for generation, thinking in itertools.product((True, False), (None, True, False)):
        yield generation, thinking


def variables_of(messages, tools, generation, thinking):
    """What apply_chat_template passes on: see render_jinja_template."""
    messages = chat_template_utils._alias_reasoning_fields(json.loads(json.dumps(messages)))
    result = {"bos_token": "<bos>", "eos_token": "<eos>", "messages": messages, "tools": tools, "documents": None, "add_generation_prompt": generation}
    if thinking is not None:
        result["enable_thinking"] = thinking
    return result


def render(source, variables):
    """(text, None) or (None, error)."""
    try:
        return chat_template_utils._compile_jinja_template(source).render(**variables), None
    except Exception as error:  # any failure of the template is an answer
        return None, f"{type(error).__name__}: {error}"


def template_goldens(folder):
    cases = []
    talks = conversations()
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text()
        for name, (messages, tools) in talks.items():
            answers = {}
            for generation, thinking in settings():
                text, error = render(source, variables_of(messages, tools, generation, thinking))
                answers.setdefault((text, error), []).append([generation, thinking])
            for (text, error), when in answers.items():
                answer = {"text": text} if error is None else {"error": error}
                cases.append({"template": path.name, "conversation": name, "when": when, **answer})
    return {"conversations": {n: {"messages": m, "tools": t} for n, (m, t) in talks.items()}, "cases": cases}


def snippet_goldens():
    cases = []
    for source in chat_snippets.SNIPPETS:
        text, error = render(source, chat_snippets.VARIABLES)
        cases.append({"source": source, **({"text": text} if error is None else {"error": error})})
    for source, why in chat_snippets.UNSUPPORTED:
        cases.append({"source": source, "unsupported": why})
    return {"variables": chat_snippets.VARIABLES, "cases": cases}


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/data/chat")
    out = parser.parse_args().out
    write(out / "conversations.json", template_goldens(out / "templates"))
    write(out / "snippets.json", snippet_goldens())


if __name__ == "__main__":
    main()
