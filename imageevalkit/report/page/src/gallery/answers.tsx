// The data of one image: questions with their answers, scores, and its generation.
import type { Answer, Index } from "../data";
import { t, word } from "../words";
import { Clamp, Copy, format } from "./common";
import { type Column, judgedOf, judgingOf, type Row, type Shot, scoresOf, useMore } from "./table";
import type { View } from "./view";

interface PanelProps {
  index: Index;
  row: Row;
  column: Column;
  shot: Shot;
  view: View;
  /** The name of the model, if there are several panels. */
  titled: boolean;
}

export function Panel({ index, row, column, shot, view, titled }: PanelProps) {
  const judging = judgingOf(column, view);
  const first = column.judgings?.[0];
  const found = useMore(index, first, shot.id); // other judges have only scores
  const more = typeof found === "object" ? found : undefined;
  return (
    <section class="g-panel" aria-label={`${column.key}, ${shot.id}`}>
      {titled && <h3 class="g-model">{column.key}</h3>}
      {typeof found === "string" && (
        <p class="g-error" role="alert">
          {found || t("no_details")}
        </p>
      )}
      {found === undefined && <p class="g-soft">{t("loading")}</p>}
      {more?.error && (
        <>
          <h3>{shot.status === "refused" ? t("refused_words") : word(shot.status)}</h3>
          <Clamp text={more.error[1] || more.error[0]} kind="g-error" />
          <p class="g-soft">{more.error[0]}</p>
        </>
      )}
      {more?.reason && !more.error && shot.status !== "generated" && <Clamp text={more.reason} kind="g-error" />}
      {more && <Answers answers={more.answers} />}
      <Scores column={column} shot={shot} view={view} reason={more?.reason ?? ""} />
      {Object.entries(more?.detail ?? {}).map(([name, value]) => (
        <div key={name}>
          <h3>{word(name)}</h3>
          <Clamp text={value} />
        </div>
      ))}
      {more?.rewritten && (
        <>
          <h3 dir="auto">
            {t("prompt")}, {more.rewritten[0]}
          </h3>
          <Clamp text={more.rewritten[1]} />
        </>
      )}
      {!titled && (
        <>
          <h3>{t("prompt")}</h3>
          <Clamp text={row.prompt || t("no_prompt")} />
        </>
      )}
      <h3>{t("about")}</h3>
      <dl>
        <Fact name={t("item")} value={shot.id} />
        <Fact name={t("status").toLowerCase()} value={word(shot.status)} />
        {shot.seed !== undefined && (
          <Fact name={t("seed")} value={`${shot.seed}${shot.seedIgnored ? ` (${t("no_seed")})` : ""}`} />
        )}
        {Object.entries(more?.facts ?? {}).map(([name, value]) => (
          <Fact key={name} name={word(name)} value={value} />
        ))}
        {Object.entries(row.keys).map(([name, value]) => (
          <Fact key={name} name={word(name)} value={value} />
        ))}
        {judging?.evaluator && <Fact name={t("judge").toLowerCase()} value={judging.evaluator} />}
        {shot.file && <Fact name={t("file")} value={unquoted(shot.file)} />}
      </dl>
      <p class="g-buttons">
        <Copy text={shot.id} label={t("copy_id")} />
        {more?.command && <Copy text={more.command} label={t("copy_command")} />}
      </p>
      {more?.command && (
        <>
          <h3>{t("make_again")}</h3>
          <code class="g-command">{more.command}</code>
        </>
      )}
    </section>
  );
}

function unquoted(path: string): string {
  try {
    return decodeURIComponent(path);
  } catch {
    return path; // the bytes are not text
  }
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd dir="auto">{value}</dd>
    </>
  );
}

interface ScoresProps {
  column: Column;
  shot: Shot;
  view: View;
  reason: string;
}

/** The scores by every judge of the image. The judge of the shown answers is first. */
function Scores({ column, shot, view, reason }: ScoresProps) {
  const shown = judgingOf(column, view);
  const judgings = [...(column.judgings ?? [])].sort((a, b) => Number(b === shown) - Number(a === shown));
  const scored = judgings.filter((one) => scoresOf(one, shot.id).length);
  const judged = judgedOf(column, shot, view);
  if (!scored.length && !judged) return null;
  return (
    <>
      <h3>{t("scores")}</h3>
      {!scored.length && (
        <>
          <p>{word(judged)}</p>
          {reason && <Clamp text={reason} />}
        </>
      )}
      {scored.map((one) => (
        <div key={one.cell}>
          {judgings.length > 1 && <p class="g-soft">{one.evaluator}</p>}
          <dl>
            {scoresOf(one, shot.id).map(([metric, score]) => (
              <Fact key={metric} name={word(metric)} value={format(score)} />
            ))}
          </dl>
        </div>
      ))}
    </>
  );
}

type Mark = "wrong" | "right" | "unread" | "plain";

function markOf({ status, score }: Answer): Mark {
  if (status !== "ok") return "unread";
  if (score === undefined) return "plain";
  return score < 0.5 ? "wrong" : "right";
}

const RANK: Mark[] = ["wrong", "unread", "plain", "right"];
const SIGNS: Record<Mark, string> = { wrong: "✗", unread: "?", plain: "•", right: "✓" };

/** A longer reply is shown as its value alone. */
const SHORT = 80;

function Answers({ answers }: { answers: Answer[] }) {
  if (!answers.length) return null;
  const sorted = [...answers].sort(
    (a, b) => RANK.indexOf(markOf(a)) - RANK.indexOf(markOf(b)) || (a.score ?? 1) - (b.score ?? 1),
  );
  const wrong = answers.filter((one) => markOf(one) === "wrong").length;
  const several = new Set(answers.map((one) => one.who)).size > 1;
  return (
    <>
      <h3>
        {t("questions")} {wrong > 0 && <span class="g-bad">{t("count_wrong", { wrong, all: answers.length })}</span>}
        {!several && answers[0]?.who && <span> · {answers[0].who}</span>}
      </h3>
      <ol class="g-answers">
        {sorted.map((answer, n) => {
          const mark = markOf(answer);
          const value = answer.value || (answer.reply.length <= SHORT ? answer.reply : "");
          const said = answer.status === "ok" ? value : t(`answer_${answer.status}`);
          return (
            <li key={n} class={`g-${mark}`}>
              <span class="g-sign" role="img" aria-label={t(`answer_${mark}`)}>
                {SIGNS[mark]}
              </span>
              <div>
                <p class="g-question" dir="auto">
                  {answer.text || word(answer.question)}
                </p>
                <p class="g-value" dir="auto">
                  <b>{said}</b>{" "}
                  <span class="g-soft">
                    {[
                      answer.score !== undefined && format({ value: answer.score, scale: 1 }),
                      answer.text && answer.text !== answer.question && answer.question,
                      several && answer.who,
                    ]
                      .filter(Boolean)
                      .join(" · ")}
                  </span>
                </p>
                {answer.reply && answer.reply !== said && <Clamp text={answer.reply} />}
              </div>
            </li>
          );
        })}
      </ol>
    </>
  );
}
