// The types of a dashboard's JSON, from Grafana's own packages.

import type { Dashboard, Panel, RowPanel } from "@grafana/schema";
import type { Options as GaugeOptions } from "@grafana/schema/dist/esm/raw/composable/gauge/panelcfg/x/GaugePanelCfg_types.gen";
import type { Options as HeatmapOptions } from "@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen";
import type { Options as TableOptions } from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";

/** The same type with the texts and numbers of JSON in the place of enumerations, and whatever a panel leaves out. */
type Json<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : T extends (infer Item)[]
      ? Json<Item>[]
      : T extends object
        ? { [Key in keyof T]?: Json<T[Key]> }
        : unknown;

export type DashboardJson = Json<Omit<Dashboard, "panels">> & { panels: unknown[] };
export type PanelJson = Json<Omit<Panel, "options" | "targets">>;
export type RowJson = Json<RowPanel>;
export type OptionsJson = { table: Json<TableOptions>; heatmap: Json<HeatmapOptions>; gauge: Json<GaugeOptions> };
