import { type ComponentChildren, Fragment } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Cell, Index } from "./data";
import { Gallery } from "./gallery/gallery";
import { BenchmarkPage } from "./pages/benchmark";
import { CellPage } from "./pages/cell";
import { Compare } from "./pages/compare";
import { Cost } from "./pages/cost";
import { CurvesPage } from "./pages/curves";
import { Overview } from "./pages/overview";
import { TradeOffs } from "./pages/tradeoffs";
import { cut } from "./parts";
import { byName } from "./results";
import { href, route, slug } from "./route";
import { VotesPage } from "./vote/report";
import { VotePage } from "./vote/vote";
import { type Language, language, paint, speak, t, theme } from "./words";

export function App({ index }: { index: Index }) {
  const main = useRef<HTMLElement>(null);
  const place = route.value.path.map(slug).join("/");
  useArrival(main, place);
  return (
    <>
      <button type="button" class="skip" onClick={() => main.current?.focus()}>
        {t("skip")}
      </button>
      <Top index={index} />
      <main id="main" ref={main} tabIndex={-1}>
        <Fragment key={place}>
          <View index={index} />
        </Fragment>
      </main>
    </>
  );
}

/** A new view gives its heading to the tab and, after the first view, to the keyboard focus. Back restores the position. */
function useArrival(main: { current: HTMLElement | null }, place: string): void {
  const last = useRef<string | undefined>(undefined);
  const scrolled = useRef(new Map<string, number>());
  const followed = useRef(false);
  useEffect(() => {
    const note = () => scrolled.current.set(location.hash, scrollY);
    const follow = (event: Event) => {
      followed.current ||= event.target instanceof Element && event.target.closest("a[href^='#/']") !== null;
    };
    addEventListener("scroll", note, { passive: true });
    addEventListener("click", follow, true);
    return () => {
      removeEventListener("scroll", note);
      removeEventListener("click", follow, true);
    };
  }, []);
  const words = language.value;
  // the heading is in the reader's language and may need loaded data
  useEffect(() => {
    const view = main.current;
    if (!view) return;
    const goes = last.current !== undefined && last.current !== place;
    const top = followed.current ? 0 : (scrolled.current.get(location.hash) ?? 0);
    followed.current = false;
    last.current = place;
    const arrive = () => {
      const heading = view.querySelector<HTMLElement>("h1");
      document.title = [cut(heading?.textContent ?? "", 200), "ImageEvalKit"].filter(Boolean).join(" · ");
      if (!heading) return;
      loading.disconnect();
      if (!goes) return;
      heading.tabIndex = -1;
      heading.focus({ preventScroll: true });
      scrollTo(0, top);
    };
    const loading = new MutationObserver(arrive);
    loading.observe(view, { childList: true, subtree: true });
    if (goes) view.focus({ preventScroll: true });
    arrive();
    return () => loading.disconnect();
  }, [place, words]);
}

function Top({ index }: { index: Index }) {
  const [page = ""] = route.value.path;
  const [benchmark] = index.benchmarks;
  const drawn = index.benchmarks.find(({ prompts }) => prompts);
  const link = (name: string, path: string[], children: ComponentChildren) => (
    <a href={href(path)} aria-current={page === name ? "page" : undefined}>
      {children}
    </a>
  );
  return (
    <header class="top">
      <a class="brand" href={href([])}>
        ImageEvalKit
      </a>
      <nav aria-label={t("pages")}>
        {link("", [], t("leaderboard"))}
        {benchmark && link("benchmark", ["benchmark", benchmark.name], t("benchmarks"))}
        {drawn && link("gallery", ["gallery", drawn.name], t("gallery"))}
        {drawn && index.models.length > 1 && link("vote", ["vote"], t("vote"))}
        {index.votes && link("votes", ["votes"], t("votes"))}
        {index.boards.length > 0 && link("tradeoffs", ["tradeoffs"], t("tradeoffs"))}
        {index.curves.length > 0 && link("curves", ["curves"], t("curves"))}
        {index.boards.length > 0 && link("cost", ["cost"], t("cost"))}
        {index.models.length > 1 && link("compare", ["compare"], t("compare"))}
      </nav>
      <div class="settings">
        <label>
          {t("language")}{" "}
          <select value={language.value} onChange={(event) => speak(event.currentTarget.value as Language)}>
            <option value="en">English</option>
            <option value="zh">中文</option>
          </select>
        </label>
        <label>
          {t("theme")}{" "}
          <select value={theme.value} onChange={(event) => paint(event.currentTarget.value)}>
            <option value="system">{t("system")}</option>
            <option value="light">{t("light")}</option>
            <option value="dark">{t("dark")}</option>
          </select>
        </label>
      </div>
    </header>
  );
}

function View({ index }: { index: Index }) {
  const [page = "", name = "", of = ""] = route.value.path;
  switch (page) {
    case "":
      return <Overview index={index} />;
    case "benchmark": {
      const found = byName(index.benchmarks, name);
      if (found) return <BenchmarkPage index={index} name={found.name} />;
      break;
    }
    case "cell": {
      const [first, ...more] = index.cells.filter(
        (cell: Cell) => slug(cell.model) === name && slug(cell.benchmark) === of,
      );
      if (first) return <CellPage index={index} cells={[first, ...more]} />;
      break;
    }
    case "tradeoffs":
      return <TradeOffs index={index} />;
    case "curves":
      return <CurvesPage index={index} />;
    case "cost":
      return <Cost index={index} />;
    case "compare":
      return <Compare index={index} />;
    case "vote":
      return <VotePage index={index} />;
    case "votes":
      return <VotesPage index={index} />;
    case "gallery": {
      const found = byName(index.benchmarks, name);
      if (found) return <Gallery index={index} benchmark={found.name} />;
      break;
    }
  }
  return (
    <section class="card">
      <h1>{t("not_found")}</h1>
      <p>
        <bdi class="text">{cut(location.hash, 200)}</bdi>
      </p>
      <p>
        <a href={href([])}>{t("leaderboard")}</a>
      </p>
    </section>
  );
}
