// Every word of the page in English and Chinese. Names, prompts and replies are never translated.
import { signal } from "@preact/signals";
import { GALLERY_WORDS } from "./gallery/words";

const WORDS = {
  overview: ["Overview", "总览"],
  benchmark: ["Benchmark", "基准"],
  model: ["Model", "模型"],
  gallery: ["Gallery", "图库"],
  vote: ["Vote", "投票"],
  language: ["Language", "语言"],
  theme: ["Theme", "主题"],
  light: ["Light", "浅色"],
  dark: ["Dark", "深色"],
  system: ["As the system", "跟随系统"],
  loading: ["Loading …", "加载中……"],
  skip: ["Skip to the content", "跳到正文"],
  not_found: ["There is no such page.", "没有这个页面。"],
  ...GALLERY_WORDS,
} as const satisfies Record<string, readonly [string, string]>;

export type Word = keyof typeof WORDS;
export type Language = "en" | "zh";

function kept(name: string): string | null {
  try {
    return localStorage.getItem(name);
  } catch {
    return null; // storage is refused
  }
}

export function keep(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // only this visit
  }
}

const first = kept("language") ?? (navigator.language.startsWith("zh") ? "zh" : "en");
export const language = signal<Language>(first === "zh" ? "zh" : "en");
export const theme = signal<string>(kept("theme") ?? "system");

/** The word in the reader's language, with `{name}` filled in. */
export function t(word: Word, values: Record<string, string | number> = {}): string {
  const text = WORDS[word][language.value === "zh" ? 1 : 0];
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole));
}

export function speak(to: Language): void {
  language.value = to;
  document.documentElement.lang = to === "zh" ? "zh-CN" : "en";
  keep("language", to);
}

export function paint(to: string): void {
  theme.value = to;
  document.documentElement.dataset["theme"] = to;
  keep("theme", to);
}
