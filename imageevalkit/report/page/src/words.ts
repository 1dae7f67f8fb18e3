// All words of the page in English and Chinese. Names, prompts and replies are never translated.
import { signal } from "@preact/signals";
import { GALLERY_WORDS } from "./gallery/words";
import { VOTE_WORDS } from "./vote/words";

const WORDS = {
  pages: ["Pages", "页面"],
  benchmark: ["Benchmark", "基准"],
  benchmarks: ["Benchmarks", "基准"],
  model: ["Model", "模型"],
  gallery: ["Gallery", "图库"],
  vote: ["Blind comparison", "盲评"],
  tradeoffs: ["Trade-offs", "权衡"],
  curves: ["Curves", "曲线"],
  cost: ["Cost", "成本"],
  compare: ["Compare", "对比"],
  language: ["Language", "语言"],
  theme: ["Theme", "主题"],
  light: ["Light", "浅色"],
  dark: ["Dark", "深色"],
  system: ["System", "跟随系统"],
  loading: ["Loading …", "加载中……"],
  skip: ["Skip to content", "跳到正文"],
  judge_words: ["Most frequent answers", "最常见的回答"],
  answer: ["Answer", "回答"],
  any_other: ["other", "其他"],
  times: ["Times", "次数"],
  not_found: ["Page not found.", "页面不存在。"],
  more: ["show all", "展开"],
  less: ["show less", "收起"],
  sort: ["Sort by this column", "按此列排序"],
  counts: [
    "models: {models} · benchmarks: {benchmarks} · results: {results}",
    "{models} 个模型 · {benchmarks} 个基准 · {results} 个结果",
  ],
  values: ["Values", "数值"],
  details: ["Details", "详情"],
  heat_map: ["Heat map", "热力图"],
  ranking: ["Ranking", "排名"],
  sample_images: ["Images", "图像"],
  lowest: ["Lowest scores", "得分最低的图像"],
  highest: ["Highest scores", "得分最高的图像"],
  by_metric: ["Sorted by {metric}.", "按 {metric} 排序。"],
  mean_over: ["Mean of {n} benchmarks", "{n} 个基准的平均"],
  mean_over_one: ["Mean of 1 benchmark", "1 个基准的平均"],
  order_mean: ["Order: {mean}, in percent of each scale.", "按“{mean}”排序（各项按满分折算为百分比）。"],
  order_first: ["Models are sorted by the first column. No mean is shown.", "模型按第一列排序；不显示平均值。"],
  not_in_mean: ["Not in the mean: {names}. --sort_by chooses others.", "未计入平均：{names}。可用 --sort_by 另选。"],
  no_interval: ["no interval: {why}", "无区间：{why}"],
  heat_note: [
    "Percent of each scale. Small numbers: judged / expected images.",
    "占满分的百分比。小字：已评 / 应评图像数。",
  ],
  leaderboard: ["Leaderboard", "排行榜"],
  group_note: [
    "Bold: the best, and models not significantly worse. Models that share a letter do not differ significantly.",
    "粗体：最高分及与其无显著差异的模型。字母相同的模型之间没有显著差异。",
  ],
  group_tip: [
    "Paired test by prompt where item scores exist, p < 0.05, Holm's correction over all pairs of the column. With --judge_repeats, a difference must also exceed the judge's noise.",
    "有逐条得分时按提示词做配对检验，p < 0.05，对同列所有配对做 Holm 校正。使用 --judge_repeats 时，差异还须超过评审噪声。",
  ],
  drift_note: [
    "! The judge's answers have changed since the earlier run: do not compare the two.",
    "! 评审的回答与之前的运行相比已有变化，两者的分数不可比较。",
  ],
  interval_note: [
    "± and [ ]: 95 % interval. The line below shows it on the whole scale.",
    "± 与 [ ]：95% 置信区间；下方短线为其在满分范围内的位置。",
  ],
  no_results: ["No results yet.", "尚无结果。"],
  comparisons: ["Comparisons of results", "结果对比"],
  withheld_scores: ["Withheld scores", "暂不公布的得分"],
  withheld_note: [
    "Images or answers are missing, so the benchmark has no score yet. result.json and the gallery have the values so far.",
    "缺少图像或回答，因此暂无该基准的得分。已有的数值见 result.json 和图库。",
  ],
  without_result: ["Without a result", "尚无结果"],
  no_items: ["no images yet", "还没有图像"],
  unreadable: ["Unreadable files", "无法读取的文件"],
  version: ["Version", "版本"],
  not_stated: ["not stated", "未注明"],
  evaluator: ["Evaluator", "评测器"],
  official: ["official evaluator", "官方评测器"],
  not_official: ["unofficial evaluator", "非官方评测器"],
  rewritten_by: ["prompts rewritten by {name}", "提示词由 {name} 改写"],
  first_items: ["first {n} items", "前 {n} 个条目"],
  stopped_after: ["stopped after {n} items", "在 {n} 个条目后提前停止"],
  of_scale: ["{value} of {scale}", "{value}（满分 {scale}）"],
  judged_of: ["{judged} of {expected} scored", "已评分 {judged}/{expected}"],
  flat: ["flat colour", "纯色图"],
  flat_note: [
    "The model generated a single flat colour. The image is scored like any other.",
    "模型生成了纯色图，照常评分。",
  ],
  coverage: ["Coverage", "覆盖率"],
  metric: ["Metric", "指标"],
  metrics: ["Metrics", "指标"],
  score: ["Score", "得分"],
  scale: ["Scale", "量程"],
  headline: ["Headline", "主分数"],
  side_by_side: ["Models shown", "显示的模型"],
  chart: ["Charts", "图表"],
  bars: ["bars", "柱状图"],
  radar: ["radar (3 to 12 metrics)", "雷达图（3 至 12 个指标）"],
  bars_note: ["Bars with 95 % intervals. The table has the same numbers.", "柱状图，附 95% 置信区间；具体数字见表格。"],
  radar_note: [
    "Each metric divided by its scale: 0 in the middle, 1 at the edge. The table has the numbers with intervals.",
    "各指标除以满分：中心为 0，外缘为 1。带置信区间的数字见表格。",
  ],
  share_note: [
    "The metrics have different scales: each is divided by its scale.",
    "各指标满分不同，均除以各自的满分。",
  ],
  none_chosen: ["The chosen models have no result here.", "所选模型在此没有结果。"],
  smallest: [
    "Smallest detectable difference with these items (80 % power, 95 % confidence):",
    "这些条目能检测出的最小差异（功效 80%，置信度 95%）：",
  ],
  smallest_note: ["A smaller difference needs more items.", "更小的差异需要更多条目才能检测出。"],
  to_gallery: ["Gallery of {n} prompts", "图库（{n} 条提示词）"],
  to_benchmark: ["All models on this benchmark", "该基准上的所有模型"],
  relations: ["How scores relate", "得分之间的关系"],
  relations_of: ["Relations of {model}", "{model} 的关系"],
  relations_note: [
    "Upper triangle: the relation of row and column, and the share of bootstrap resamples with this relation. Paler fields are less certain. Pairs with fewer than 10 prompts have no share. Diagonal: mean of the metric. Lower triangle: means of row and column over the items of the pair.",
    "上三角：行与列的关系，以及自助重抽样中出现该关系的比例；颜色越浅越不确定，不足 10 条提示词的配对不显示比例。对角线：指标均值。下三角：该配对的条目上行与列的均值。",
  ],
  no_pair: ["No items of this pair", "该配对没有条目"],
  files: ["files:", "文件："],
  scatter_of_pairs: ["Scatter of every pair", "所有配对的散点图"],
  scatter_alt: ["Scatter of every pair of {model}; the same in numbers is below", "{model} 所有配对的散点图；数字见下"],
  pairs_in_numbers: ["{n} pairs in numbers", "{n} 个配对的数字"],
  pairs_of: ["Pairs of {model}", "{model} 的配对"],
  pair: ["Pair", "配对"],
  relation: ["Relation", "关系"],
  resamples: ["In resamples", "重抽样中"],
  else_most: ["Second most frequent", "第二常见"],
  items: ["Items", "条目"],
  means: ["Means", "均值"],
  both_high: ["Both high", "同时高"],
  both_low: ["Both low", "同时低"],
  above_below: ["Above : below", "线上 : 线下"],
  on_line: ["all points are on the line, counted as below", "所有点都在线上，按线下计"],
  too_few_prompts: ["too few prompts to resample", "提示词太少，无法重抽样"],
  in_resamples: ["in {share} of resamples", "占重抽样的 {share}"],
  treatment: ["Treatment of missing items: {name}", "缺失条目的处理方式：{name}"],
  failures: ["Failures", "失败"],
  no_failures: ["No item failed.", "没有失败的条目。"],
  outcome: ["Status", "状态"],
  reason: ["Reason", "原因"],
  examples: ["Examples", "示例"],
  cost_and_speed: ["Cost and speed", "成本与速度"],
  generation_usd: ["Images, USD", "图像费用（美元）"],
  judge_usd: ["Judge, USD", "评审费用（美元）"],
  usd_per_image: ["USD per image", "每张图像美元"],
  seconds_per_image: ["Seconds per image", "每张图像秒数"],
  no_cost: ["No prices or times recorded.", "没有价格或用时的记录。"],
  how_measured: ["How it was measured", "测量方式"],
  provenance: ["Provenance", "溯源信息"],
  across: ["Horizontal", "横轴"],
  up: ["Vertical", "纵轴"],
  swap: ["Swap", "交换"],
  need_two_metrics: ["Two metrics with results are needed.", "需要两个有结果的指标。"],
  no_common_model: ["No model has both scores.", "没有模型同时具有这两项得分。"],
  scatter_note: [
    "{n} models: {x} (horizontal), {y} (vertical). The table below has the same numbers.",
    "{n} 个模型：横轴 {x}，纵轴 {y}；数字见下表。",
  ],
  no_curves: [
    "No model was evaluated at several training steps (name@step).",
    "没有模型在多个训练步数上评测（名称@步数）。",
  ],
  curves_label: [
    "{y} of {n} training runs by step. The table below has the same numbers.",
    "{n} 个训练过程随步数的变化：{y}；数字见下表。",
  ],
  curves_note: [
    "Band: 95 % interval. Diamond: significantly different from the previous checkpoint (paired test, p < 0.05).",
    "色带：95% 置信区间。菱形：与前一个检查点有显著差异（配对检验，p < 0.05）。",
  ],
  step: ["Step", "步数"],
  against_before: ["Compared with the previous step", "与前一步相比"],
  differs: ["significant difference", "有显著差异"],
  not_told: ["no significant difference", "无显著差异"],
  quality: ["Quality", "质量"],
  against_price: ["Quality and price", "质量与价格"],
  against_time: ["Quality and time", "质量与时间"],
  no_price: ["No prices recorded for this benchmark.", "该基准没有价格记录。"],
  no_time: ["No times recorded for this benchmark.", "该基准没有用时记录。"],
  on_front: ["Pareto-optimal", "帕累托最优"],
  front_note: [
    "Dashed line: Pareto front. Seconds: from the request or the start of an image to its end. Times from different machines or loads are not comparable.",
    "虚线：帕累托前沿。秒数：从发出请求（或开始生成）到图像完成。不同机器或负载下的用时不可比较。",
  ],
  first_model: ["First", "第一个"],
  second_model: ["Second", "第二个"],
  need_two_models: ["Two models are needed.", "需要两个模型才能对比。"],
  no_common_board: [
    "These two models have no comparable results: same evaluator, same items.",
    "这两个模型没有可比较的结果（须使用相同的评测器和条目）。",
  ],
  compare_note: [
    "Difference: second minus first, with its 95 % interval. p: paired test by prompt, Holm's correction over all pairs of models.",
    "差值为第二个减第一个，并附 95% 置信区间。p 值来自按提示词的配对检验，对所有模型配对做 Holm 校正。",
  ],
  difference: ["Difference", "差值"],
  ...GALLERY_WORDS,
  ...VOTE_WORDS,
} as const satisfies Record<string, readonly [string, string]>;

// The words for states, outcomes and relations in files.
const DATA: Record<string, readonly [string, string]> = {
  judged: ["scored", "已评分"],
  unparsed: ["unparsed", "无法解析"],
  judge_failed: ["judge failed", "评审失败"],
  unasked: ["not asked", "未提问"],
  refused: ["refused", "被拒绝"],
  failed: ["failed", "失败"],
  blank: ["blank", "空白"],
  corrupt: ["corrupt", "损坏"],
  generated: ["generated", "已生成"],
  not_generated: ["not generated", "未生成"],
  incomplete: ["incomplete", "不完整"],
  withheld: ["withheld", "暂不公布"],
  stale: ["stale", "已过期"],
  partial: ["partial", "部分"],
  "no score": ["no score", "无得分"],
  "a script's own result": ["a script's own result", "脚本自报的结果"],
  "not all items": ["not all items", "并非全部条目"],
  "rewritten prompts": ["rewritten prompts", "改写过的提示词"],
  "fewer than 30 items": ["fewer than 30 items", "不足 30 个条目"],
  "no official evaluator": ["unofficial evaluator", "非官方评测器"],
  "fewer than 10 prompts": ["fewer than 10 prompts", "不足 10 条提示词"],
  "a group has fewer than 10 prompts": ["a group has fewer than 10 prompts", "有一组不足 10 条提示词"],
  "metrics.json gives none": ["metrics.json gives none", "metrics.json 未给出"],
  "the score is not a mean over items": ["the score is not a mean over items", "该得分不是条目的均值"],
  "Synergy: both high together": ["Synergy: both high together", "协同：同时高"],
  "Bottleneck: both low together": ["Bottleneck: both low together", "瓶颈：同时低"],
  "Tilt: row dominates column": ["Tilt: row dominates column", "倾斜：行压过列"],
  "Tilt: column dominates row": ["Tilt: column dominates row", "倾斜：列压过行"],
  "Dispersion: scattered": ["Dispersion: scattered", "离散：分散"],
  "No relation found": ["No relation found", "未发现关系"],
};

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
    // for this visit only
  }
}

const first = kept("language") ?? (navigator.language.startsWith("zh") ? "zh" : "en");
export const language = signal<Language>(first === "zh" ? "zh" : "en");
export const theme = signal<string>(kept("theme") ?? "system");

/** The word of a file for an item, a cell or a relation in the reader's language, if it is known. */
export function word(text: string): string {
  if (!Object.hasOwn(DATA, text)) return text.replaceAll("_", " ");
  return (DATA[text] as readonly [string, string])[language.value === "zh" ? 1 : 0];
}

/** The word in the reader's language, with `{name}` filled in. */
export function t(word: Word, values: Record<string, string | number> = {}): string {
  const text = WORDS[word][language.value === "zh" ? 1 : 0];
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => isolated(String(values[name] ?? whole)));
}

/** `text`, isolated so that its direction does not change the text after it. */
function isolated(text: string): string {
  return /[\u0590-\u08ff\u200f\u202a-\u202e\u2066-\u2069]/.test(text) ? `\u2068${text}\u2069` : text;
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
