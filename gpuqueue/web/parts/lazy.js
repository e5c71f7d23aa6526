// A view whose modules are loaded when it is first shown, so that the page begins without them.
import { html, useEffect, useState } from "../lib.js";

/**
 * @param {() => Promise<any>} load returns the component
 * @returns {(props: any) => any}
 */
export function lazy(load) {
  /** @type {any} */
  let found = null;
  return function Lazy(props) {
    const [, draw] = useState(false);
    const [wrong, setWrong] = useState("");
    useEffect(() => {
      if (found) return;
      load().then((it) => { found = it; draw(true); }, () => setWrong("A part of this page cannot be loaded. Load it again."));
    }, []);
    if (wrong) return html`<p class="banner bad" role="alert">${wrong}</p>`;
    return found ? html`<${found} ...${props} />` : html`<p class="loading">Loading…</p>`;
  };
}
