// A button that downloads a file of the API.
import { download, isEmptyArchive, noted } from "../api.js";
import { html, useState } from "../lib.js";

/**
 * @param {object} props
 * @param {string} props.path with its query
 * @param {string} [props.kind]
 * @param {string} [props.title]
 * @param {string} [props.empty] what is said of an archive without a file, in place of a download
 * @param {any} [props.children]
 */
export function Download({ path, kind = "", title, empty, children }) {
  const [wrong, setWrong] = useState("");
  const clicked = async () => {
    setWrong("");
    try {
      if (empty && (await isEmptyArchive(path))) setWrong(empty);
      else await download(path);
    } catch (error) {
      setWrong(noted(error).message);
    }
  };
  return html`<button type="button" class=${kind} title=${title} onClick=${clicked}>${children}</button>${wrong ? html`<span class="bad-text" role="alert">${wrong}</span>` : null}`;
}
