"""LiteLLM: its HTTP calls are seen like everybody's; this callback adds what does not go over a known HTTP path
(a provider with a wire form of its own, a custom provider, a mocked reply)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from trace_sdk import _log
from trace_sdk._json import JsonDict, as_dict, as_list
from trace_sdk._layers import Slot, record
from trace_sdk._run import live_run
from trace_sdk._snapshot import jsonable

_OPEN_LIMIT = 10_000


def install(litellm: ModuleType) -> None:
    """Add our callback to LiteLLM's list, beside whatever else is there."""
    from litellm.integrations.custom_logger import (  # pyright: ignore[reportMissingImports]
        CustomLogger,  # pyright: ignore[reportUnknownVariableType]
    )

    base: Any = CustomLogger

    class Callback(base):  # its methods' names and arguments are LiteLLM's
        def __init__(self) -> None:
            base.__init__(self)
            self._open: dict[str, Slot] = {}

        def _begin(self, kwargs: JsonDict) -> None:
            call_id = kwargs.get("litellm_call_id")
            run = live_run()
            if run is None or not isinstance(call_id, str) or call_id in self._open:
                return
            if len(self._open) >= _OPEN_LIMIT:  # calls whose end LiteLLM never told
                self._open.clear()
            self._open[call_id] = Slot(run)

        def _end(self, kwargs: JsonDict, response: Any, error: BaseException | None) -> None:
            try:
                slot = self._open.pop(str(kwargs.get("litellm_call_id")), None)
                if slot is not None and slot.close() and "embedding" not in str(kwargs.get("call_type")):
                    whole = kwargs.get("complete_streaming_response") or response
                    plain = as_dict(jsonable(whole)) if error is None else None
                    record(slot, "litellm", _request(kwargs), plain, error)
            except Exception as problem:
                _log.say_once("litellm", "trace.litellm_call_not_recorded", error=repr(problem))

        # In the context of the call itself, which `log_pre_api_call` of an async call is not.
        async def async_pre_call_deployment_hook(self, kwargs: JsonDict, call_type: Any) -> None:
            self._begin(kwargs)

        def log_pre_api_call(self, model: Any, messages: Any, kwargs: JsonDict) -> None:
            self._begin(kwargs)

        def log_success_event(self, kwargs: JsonDict, response_obj: Any, start_time: Any, end_time: Any) -> None:
            self._end(kwargs, response_obj, None)

        async def async_log_success_event(
            self, kwargs: JsonDict, response_obj: Any, start_time: Any, end_time: Any
        ) -> None:
            self._end(kwargs, response_obj, None)

        def log_failure_event(self, kwargs: JsonDict, response_obj: Any, start_time: Any, end_time: Any) -> None:
            self._end(kwargs, None, _error(kwargs))

        async def async_log_failure_event(
            self, kwargs: JsonDict, response_obj: Any, start_time: Any, end_time: Any
        ) -> None:
            self._end(kwargs, None, _error(kwargs))

    module: Any = litellm
    module.callbacks.append(Callback())


def _error(kwargs: JsonDict) -> BaseException:
    error = kwargs.get("exception")
    return error if isinstance(error, BaseException) else RuntimeError(str(error))


def _request(kwargs: JsonDict) -> JsonDict:
    params = as_dict(jsonable(kwargs.get("optional_params")))
    tools = as_list(params.pop("tools", None))
    messages = kwargs.get("messages")
    return {
        "model": kwargs.get("model"),
        "messages": [{"role": "user", "content": messages}]
        if isinstance(messages, str)
        else as_list(jsonable(messages)),
        "tools": tools,
        "params": params,
    }
