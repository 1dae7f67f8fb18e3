// The result of all vote files together.
import { useMemo } from "preact/hooks";
import { Intervals } from "../charts/figure";
import { plain } from "../charts/options";
import type { Index, VoteReport } from "../data";
import { Scroll } from "../parts";
import { href } from "../route";
import { t } from "../words";

export function VotesPage({ index }: { index: Index }) {
  const { votes } = index;
  if (!votes) {
    return (
      <section class="card">
        <h1>{t("votes")}</h1>
        <p>{t("no_votes")}</p>
        <p class="note">{t("vote_file_about")}</p>
        <p>
          <a href={href(["vote"])}>{t("vote")}</a>
        </p>
      </section>
    );
  }
  return (
    <section class="card">
      <h1>{t("votes")}</h1>
      <p>{t("votes_of", { n: votes.votes, files: votes.files.length })}</p>
      <p class="note">{t("rating_note")}</p>
      {votes.tables.map((table, n) => (
        <Ratings key={n} {...table} />
      ))}
      {votes.notes.map((note) => (
        <p class="problem" key={note}>
          {note}
        </p>
      ))}
      {votes.judges.length > 0 && (
        <>
          <h2>{t("judge_agreement")}</h2>
          <p class="note">{t("agreement_note")}</p>
          <Scroll label={t("judge_agreement")}>
            <table>
              <thead>
                <tr>
                  <th scope="col">{t("judge")}</th>
                  <th scope="col">{t("benchmark")}</th>
                  <th scope="col">{t("metric")}</th>
                  <th scope="col">{t("agreement")}</th>
                  <th scope="col">{t("votes_counted")}</th>
                </tr>
              </thead>
              <tbody>
                {votes.judges.map((row) => (
                  <tr key={`${row.evaluator} ${row.benchmark} ${row.metric}`}>
                    <th scope="row">
                      <bdi>{row.evaluator}</bdi>
                    </th>
                    <td>{row.benchmark || t("all_benchmarks")}</td>
                    <td>{row.metric}</td>
                    <td>
                      <b>{(100 * row.agreement).toFixed(0)} %</b>{" "}
                      <span class="interval">
                        [{(100 * row.low).toFixed(0)}, {(100 * row.high).toFixed(0)}]
                      </span>
                      <span
                        class="whisker"
                        style={{
                          "--value": `${100 * row.agreement}%`,
                          "--low": `${100 * row.low}%`,
                          "--high": `${100 * row.high}%`,
                        }}
                      >
                        <i />
                      </span>
                    </td>
                    <td>{row.n}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
        </>
      )}
      <h2>{t("files_of_votes")}</h2>
      <ul class="list">
        {votes.files.map((file) => (
          <li key={file}>
            <bdi>{file}</bdi>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Ratings({ benchmark, rows }: VoteReport["tables"][number]) {
  const name = benchmark || t("all_benchmarks");
  const interval = (row: { low: number; high: number }) => `[${row.low.toFixed(0)}, ${row.high.toFixed(0)}]`;
  const figures = useMemo(
    () =>
      rows.map((row) => ({
        name: row.model,
        figure: { ...plain(row.rating, row.rating.toFixed(0)), low: row.low, high: row.high, interval: interval(row) },
      })),
    [rows],
  );
  return (
    <>
      <h2>
        <bdi>{name}</bdi>
      </h2>
      <Intervals rows={figures} x={t("rating")} label={t("ratings_label", { name, n: rows.length })} />
      <Scroll label={name}>
        <table>
          <thead>
            <tr>
              <th scope="col">{t("model")}</th>
              <th scope="col">{t("rating")}</th>
              <th scope="col">{t("wins")}</th>
              <th scope="col">{t("losses")}</th>
              <th scope="col">{t("ties")}</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.model}>
                <th scope="row">
                  <bdi>{row.model}</bdi>
                </th>
                <td>
                  <b>{row.rating.toFixed(0)}</b> <span class="interval">{interval(row)}</span>
                </td>
                <td>{row.wins}</td>
                <td>{row.losses}</td>
                <td>{row.ties}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </>
  );
}
