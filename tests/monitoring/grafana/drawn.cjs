// Has Grafana's own code make tables of what Prometheus answered, and text of numbers; reads JSON and prints JSON.
//
// Read: {"panels": [{"transformations": […], "frames": […]}], "units": {"bytes": 1024}}; a frame has `refId` and fields of
// name and values. Printed: {"tables": [{"columns": […], "rows": [[…]]}], "units": {"bytes": "1 KiB"}, "known": […]}.

globalThis.navigator = { language: "en-US", languages: ["en-US"] };
const grafana = require("@grafana/data");
globalThis.window = globalThis; // looked at when tables are made; present earlier, it is taken for a browser's

const { standardTransformers, standardTransformersRegistry } = grafana;
standardTransformersRegistry.setInit(() =>
  [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer].map((each) => ({
    id: each.id,
    name: each.name,
    transformation: () => Promise.resolve(each),
  })),
);

function table(panel) {
  const frames = panel.frames.map((frame) => grafana.toDataFrame(frame));
  return new Promise((resolve, reject) =>
    grafana
      .transformDataFrame(panel.transformations, frames, { interpolate: (text) => text })
      .subscribe({ next: (made) => resolve(made.map((frame) => read(frame, made))), error: reject }),
  );
}

function read(frame, all) {
  const columns = frame.fields.map((field) => grafana.getFieldDisplayName(field, frame, all));
  const rows = Array.from({ length: frame.length }, (_, row) => frame.fields.map((field) => field.values[row] ?? null));
  return { columns, rows };
}

function shown([unit, value]) {
  return [unit, grafana.formattedValueToString(grafana.getValueFormat(unit)(value))];
}

async function main() {
  const asked = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
  const tables = await Promise.all(asked.panels.map(table));
  const known = grafana.getValueFormats().flatMap((category) => category.submenu.map((each) => each.value));
  const units = Object.fromEntries(Object.entries(asked.units).map(shown));
  process.stdout.write(JSON.stringify({ tables, units, known }));
}

main();
