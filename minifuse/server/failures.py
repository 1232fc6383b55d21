"""Errors in OpenAI's form, with their HTTP status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}


MOST_SHOWN = 100  # the most characters of a client's text that a message repeats


class Refused(Exception):
    """A request that is answered with an error.

    Args:
        param: the field of the body that is at fault.
        code: one word for programs, such as model_not_found.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def no_model(asked: str, served: str) -> Refused:
    """Return the refusal of a model that is not served."""
    why = f"The model {asked[:MOST_SHOWN]!r} is not served here: ask for {served!r}."
    return Refused(404, why, param="model", code="model_not_found")
