"""The OpenAPI description of all routes, made from their table. Driver; pure."""

from __future__ import annotations

import re
from typing import Any

from tidegate.rest.routes import ROUTES, Field, Route
from tidegate.version import __version__

_PARAMETER = re.compile(r"\{(\w+)\}")
_ID = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
_NAME = {"type": "string", "minLength": 1, "maxLength": 200}
_PARAMETERS = {
    "jobid": _ID,
    "vertexid": _ID,
    "triggerid": _ID,
    "checkpointid": _NUMBER,
    "subtaskindex": _NUMBER,
    "rescaleuuid": {"type": "string", "format": "uuid"},
    "taskmanagerid": _NAME,
    "log": _NAME,
}
_ERROR = {
    "description": "what was wrong",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Errors"}}},
}
_PROBLEMS = ("400", "401", "403", "404", "405", "409", "413", "503")


def description() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(f"/v1{route.path}", {})[route.method.lower()] = _operation(route)
    paths["/metrics"] = {"get": _text("all metrics, in Prometheus' text format", "text/plain")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate",
            "version": __version__,
            "description": "The jobs of one driver. Routes and shapes are Flink's v1, and a few of our own.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Errors": {
                    "type": "object",
                    "required": ["errors"],
                    "properties": {"errors": {"type": "array", "items": {"type": "string"}}},
                }
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _PARAMETERS[name]}
        for name in _PARAMETER.findall(route.path)
    ]
    parameters += [
        {"name": field.name, "in": "query", "required": field.required, "schema": _schema(field)}
        for field in route.query
    ]
    operation: dict[str, Any] = {
        "summary": route.says,
        "tags": ["Flink's"] if route.is_flinks else ["our own"],
        "parameters": parameters,
        "responses": {str(route.success): {"description": "done", "content": _content(route)}}
        | dict.fromkeys(_PROBLEMS, _ERROR),
    }
    if route.body:
        properties = {
            field.name: _schema(field) if field.required else _nullable(_schema(field)) for field in route.body
        }
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        required = [field.name for field in route.body if field.required]
        if required:
            schema["required"] = required
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation


def _content(route: Route) -> dict[str, Any]:
    return {"text/plain": {"schema": {"type": "string"}}} if route.is_text else {"application/json": {"schema": {}}}


def _text(says: str, content_type: str) -> dict[str, Any]:
    answer = {"200": {"description": says, "content": {content_type: {"schema": {"type": "string"}}}}}
    return {"summary": says, "tags": ["our own"], "responses": answer | {"401": _ERROR, "403": _ERROR}}


def _schema(field: Field) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": field.kind}
    if field.words:
        schema["enum"] = list(field.words)
    if field.name == "triggerId":
        schema = dict(_ID)
    if field.kind == "integer":
        schema |= {"minimum": 0, "maximum": 10**9}
    return schema


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}
