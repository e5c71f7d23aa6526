// A button that downloads a file of the API.
import { download, noted } from "../api.js";
import { html, useState } from "../lib.js";

/** @param {{path: string, kind?: string, title?: string, children?: any}} props `path` has its query */
export function Download({ path, kind = "", title, children }) {
  const [wrong, setWrong] = useState("");
  const clicked = () => {
    setWrong("");
    download(path).catch((error) => setWrong(noted(error).message));
  };
  return html`<button type="button" class=${kind} title=${title} onClick=${clicked}>${children}</button>${wrong ? html`<span class="bad-text" role="alert">${wrong}</span>` : null}`;
}
