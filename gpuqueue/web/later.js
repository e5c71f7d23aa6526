// Views that are loaded when they are first shown, so that the first ones are there sooner.
import { html, useEffect, useState } from "./lib.js";

/** @param {() => Promise<any>} load returns the component @returns {any} */
export function later(load) {
  /** @type {any} */
  let found = null;
  /** @param {Record<string, any>} props */
  return function Later(props) {
    const [isThere, setThere] = useState(found !== null);
    const [isMissing, setMissing] = useState(false);
    useEffect(() => {
      if (found !== null) return;
      load().then(
        (component) => {
          found = component;
          setThere(true);
        },
        () => setMissing(true),
      );
    }, []);
    if (isMissing) return html`<p class="banner bad" role="alert">This view cannot be loaded: load the page again.</p>`;
    return isThere ? html`<${found} ...${props} />` : html`<p class="loading">Loading…</p>`;
  };
}
