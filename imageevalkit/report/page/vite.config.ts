import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

// One script and one style with fixed names, in the tree beside the sources: users have no Node. A module cannot be loaded from
// file://, so the script is a plain one.
export default defineConfig({
  plugins: [preact()],
  build: {
    outDir: "../bundle",
    emptyOutDir: true,
    cssCodeSplit: false,
    target: "es2022",
    lib: { entry: "src/main.tsx", formats: ["iife"], name: "report", fileName: () => "page.js", cssFileName: "page" },
  },
  define: { "process.env.NODE_ENV": '"production"' },
});
