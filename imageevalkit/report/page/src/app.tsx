import type { Index } from "./data";
import { Gallery } from "./gallery/gallery";
import { Overview } from "./pages/overview";
import { href, route } from "./route";
import { type Language, language, paint, speak, t, theme } from "./words";

export function App({ index }: { index: Index }) {
  return (
    <>
      <a class="skip" href="#main">
        {t("skip")}
      </a>
      <Top index={index} />
      <main id="main" tabIndex={-1}>
        <View index={index} />
      </main>
    </>
  );
}

function Top({ index }: { index: Index }) {
  const [page = ""] = route.value.path;
  const shown = index.benchmarks.filter((benchmark) => benchmark.prompts);
  return (
    <header class="top">
      <a class="brand" href={href([])}>
        ImageEvalKit
      </a>
      <nav>
        <a href={href([])} aria-current={page === "" ? "page" : undefined}>
          {t("overview")}
        </a>
        {shown[0] && (
          <a href={href(["gallery", shown[0].name])} aria-current={page === "gallery" ? "page" : undefined}>
            {t("gallery")}
          </a>
        )}
      </nav>
      <div class="settings">
        <label>
          {t("language")}
          <select value={language.value} onChange={(event) => speak(event.currentTarget.value as Language)}>
            <option value="en">English</option>
            <option value="zh">中文</option>
          </select>
        </label>
        <label>
          {t("theme")}
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
  const [page = "", name = ""] = route.value.path;
  switch (page) {
    case "":
      return <Overview index={index} />;
    case "gallery":
      return <Gallery index={index} benchmark={name} />;
    default:
      return <p>{t("not_found")}</p>;
  }
}
