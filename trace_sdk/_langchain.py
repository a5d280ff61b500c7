"""LangChain and LangGraph: a callback on every chat model inside a run, for models that call no known HTTP path."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from trace_sdk import _log
from trace_sdk._json import JsonDict, as_dict, as_list
from trace_sdk._layers import Slot, record
from trace_sdk._run import live_run
from trace_sdk._snapshot import jsonable


def install(_: ModuleType) -> None:
    """Hang our handler into LangChain's own list of handlers that come with the context."""
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.messages import convert_to_openai_messages
    from langchain_core.tracers.context import register_configure_hook

    base: Any = BaseCallbackHandler
    convert: Any = convert_to_openai_messages

    class Handler(base):
        # In the model's own context, also when it is called asynchronously; and without raising.
        run_inline = True
        raise_error = False

        def __init__(self) -> None:
            self._open: dict[Any, Slot] = {}

        def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: Any, **more: Any) -> None:
            run = live_run()
            if run is not None:
                self._open[run_id] = Slot(run, (messages, more.get("invocation_params")))

        def on_llm_end(self, response: Any, *, run_id: Any, **_: Any) -> None:
            slot = self._open.pop(run_id, None)
            if slot is None or not slot.close():
                return
            try:
                record(slot, "langchain", self._request(slot), self._response(response), None)
            except Exception as error:
                _log.say_once("langchain", "trace.langchain_call_not_recorded", error=repr(error))

        def on_llm_error(self, error: BaseException, *, run_id: Any, **_: Any) -> None:
            slot = self._open.pop(run_id, None)
            if slot is not None and slot.close():
                record(slot, "langchain", self._request(slot), None, error)

        def _request(self, slot: Slot) -> JsonDict:
            messages, invocation = slot.request
            params = as_dict(jsonable(invocation))
            model = params.pop("model", None) or params.pop("model_name", None)
            tools = as_list(params.pop("tools", None))
            return {"model": model, "messages": convert(messages[0]), "tools": tools, "params": params}

        def _response(self, result: Any) -> JsonDict:
            first = result.generations[0][0]
            message = first.message
            used = as_dict(getattr(message, "usage_metadata", None))
            told = as_dict(getattr(message, "response_metadata", None))
            finish = told.get("finish_reason") or ("tool_calls" if message.tool_calls else "stop")
            return {
                "id": getattr(message, "id", None),
                "model": told.get("model_name"),
                "choices": [{"message": convert(message), "finish_reason": finish}],
                "usage": {"prompt_tokens": used.get("input_tokens"), "completion_tokens": used.get("output_tokens")},
            }

    class InsideRuns:
        """What LangChain asks for the handler of this context; it needs only ``get``."""

        def __init__(self) -> None:
            self._handler = Handler()

        def get(self) -> Any:
            return self._handler if live_run() is not None else None

    hook: Any = register_configure_hook
    hook(InsideRuns(), True)
