// Tables whose rows are sorted by a column. The address keeps the column.
import type { ComponentChildren } from "preact";
import { Scroll } from "./parts";
import { change, route } from "./route";
import { t } from "./words";

export interface Column<Row> {
  /** Short, unique, in the address. */
  key: string;
  head: ComponentChildren;
  cell: (row: Row) => ComponentChildren;
  /** The value to sort by; a column without it cannot be sorted. Rows without a number stay at the end. */
  value?: (row: Row) => number | string | null | undefined;
  /** A property of the cell, such as a colour. */
  style?: (row: Row) => Record<string, string> | undefined;
}

interface Props<Row> {
  label: string;
  rows: Row[];
  /** The columns; the first has the headings of the rows. */
  columns: Column<Row>[];
  keyOf: (row: Row) => string;
  /** The sorted column in the address; without it rows keep their order. */
  sort?: string;
  class?: string;
  rowClass?: (row: Row) => string | undefined;
}

export function Table<Row>({ label, rows, columns, keyOf, sort, class: name, rowClass }: Props<Row>) {
  const asked = (sort && route.value.query.get(sort)) || "";
  const falling = asked.startsWith("-");
  const by = columns.find((column) => column.value && column.key === asked.replace(/^-/, ""));
  const order = by?.value;
  const sorted = order ? [...rows].sort((a, b) => compare(order(a), order(b), falling)) : rows;
  return (
    <Scroll label={label}>
      <table class={name}>
        <thead>
          <tr>
            {columns.map((column) => (
              <th
                key={column.key}
                scope="col"
                aria-sort={
                  sort && column.value ? (column === by ? (falling ? "descending" : "ascending") : "none") : undefined
                }
              >
                {sort && column.value ? (
                  <button
                    type="button"
                    class="sort"
                    title={t("sort")}
                    onClick={() => change({ [sort]: column === by && falling ? column.key : `-${column.key}` })}
                  >
                    {column.head}
                  </button>
                ) : (
                  column.head
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {sorted.map((row) => (
            <tr key={keyOf(row)} class={rowClass?.(row)}>
              {columns.map((column, n) =>
                n ? (
                  <td key={column.key} style={column.style?.(row)}>
                    {column.cell(row)}
                  </td>
                ) : (
                  <th key={column.key} scope="row">
                    {column.cell(row)}
                  </th>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

type Value = number | string | null | undefined;

function compare(a: Value, b: Value, falling: boolean): number {
  if (a === null || a === undefined || b === null || b === undefined)
    return Number(a === null || a === undefined) - Number(b === null || b === undefined);
  const order =
    typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), undefined, { numeric: true });
  return falling ? -order : order;
}
