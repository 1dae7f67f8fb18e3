import "./page.css";
import { render } from "preact";
import { App } from "./app";
import { part } from "./data";
import { language, paint, speak, theme } from "./words";

speak(language.value);
paint(theme.value);
const root = document.getElementById("app");
if (root) {
  part("index").then(
    (index) => render(<App index={index} />, root),
    (error: Error) => {
      root.textContent = error.message;
    },
  );
}
