"""What an API server answers instead of what was asked."""

STATUS = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
"""The kind of answers that are no object."""


class ApiError(Exception):
    """A request that cannot be carried out; `code` is the HTTP status."""

    code = 500
    reason = "InternalError"


class BadRequestError(ApiError):
    """A request that makes no sense."""

    code, reason = 400, "BadRequest"


class ForbiddenError(ApiError):
    """A request that this account may not make."""

    code, reason = 403, "Forbidden"


class NotFoundError(ApiError):
    """There is no such object."""

    code, reason = 404, "NotFound"


class UnsupportedError(ApiError):
    """A request that an API server would carry out, and this one does not."""

    code, reason = 405, "MethodNotAllowed"


class ConflictError(ApiError):
    """A change that another manager, another version or another object of the name stands against."""

    code, reason = 409, "Conflict"


class ExistsError(ApiError):
    """An object of the name is there already."""

    code, reason = 409, "AlreadyExists"


class ExpiredError(ApiError):
    """A version, or a page of a list, of which the server knows no more."""

    code, reason = 410, "Expired"


class TooManyRequestsError(ApiError):
    """A request that may be made later."""

    code, reason = 429, "TooManyRequests"


class InvalidError(ApiError):
    """An object as no API server takes it."""

    code, reason = 422, "Invalid"
