"""The skin: what people and programs outside see of gpushare, recorded in the files below `golden/`.

Each module beside this one that has `recorded` is a scene. It looks at gpushare from outside alone: at processes, their
sockets, their HTTP ports, the kubelet and the API server that they speak to, and the files that they exchange. So a
change of the insides cannot change the skin unnoticed. Where a change is meant, `python -m tests.skin.record` writes
the files again, and their difference is the change that others see.

Not here, because a document or a file has it that another test keeps in step with the code:

- options with their variables as a table: `docs/command-line.md`; keys of the config: `docs/configuration.md`;
- names, types, labels and help texts of all metrics, also those that no scene serves: `docs/metrics.md`;
- all events of the log with level and keys: `docs/log.md`, which is compared here with what is really logged;
- reasons and types of all Kubernetes Events, and the reasons of the Node's condition: `docs/events.md`;
- the JSON Schema of configs: `charts/gpushare/values.schema.json`, which is compared here with `gpushare schema`;
- what the chart makes: `tests/chart/golden/` and `charts/static/`.
"""
