// The bar at the top: the views, the age of what is shown, the theme, and who is signed in.
import { html, useState } from "../lib.js";
import { useAge } from "../news.js";
import { readsOnly } from "../rights.js";
import { remember, remembered } from "../storage.js";
import { duration } from "../words.js";

const THEMES = ["auto", "light", "dark"];

function ThemeChoice() {
  const [theme, setTheme] = useState(remembered("theme") ?? "auto");
  /** @param {Event & {currentTarget: HTMLSelectElement}} event */
  const chosen = (event) => {
    const next = event.currentTarget.value;
    remember("theme", next === "auto" ? null : next);
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    setTheme(next);
  };
  return html`
    <label class="theme"><span class="hidden">Theme</span>
      <select value=${theme} onChange=${chosen}>
        ${THEMES.map((each) => html`<option value=${each}>${each === "auto" ? "Auto" : each === "light" ? "Light" : "Dark"}</option>`)}
      </select>
    </label>
  `;
}

/** How old what is shown is, while there is no news. */
export function Age() {
  const age = useAge();
  return html`<span class="age" role="status">${age === null ? "" : `No news for ${duration(age)}`}</span>`;
}

/**
 * @param {object} props
 * @param {import("../types.js").Me | null | undefined} props.me
 * @param {Record<string, {title: string, isPart?: boolean, needsAccount?: boolean, changes?: boolean}>} props.views
 * @param {string} props.shown
 * @param {() => void} props.onSignIn
 * @param {() => void} props.onSignOut
 * @param {() => void} props.onHelp
 */
export function TopBar({ me, views, shown, onSignIn, onSignOut, onHelp }) {
  return html`
    <header>
      <strong class="brand">gpuqueue</strong>
      <nav aria-label="Views">
        ${me ? Object.entries(views).filter(([, each]) => !each.isPart && (me.account || !each.needsAccount) && !(each.changes && readsOnly(me))).map(([name, { title }]) => html`
          <a href=${`#/${name}`} aria-current=${name === shown ? "page" : undefined}>${title}</a>`) : null}
      </nav>
      <div class="tools">
        <${Age} />
        <button type="button" class="plain" onClick=${onHelp} aria-label="Keys" title="Keys (?)">?</button>
        <${ThemeChoice} />
        ${me?.account ? html`<a class="who" href="#/account" title=${me.admin ? "Your account: administrator" : "Your account"} aria-current=${shown === "account" ? "page" : undefined}><bdi>${me.account}</bdi>${me.admin ? html`<span class="mark">admin</span>` : null}</a>
          <button type="button" class="plain" onClick=${onSignOut}>Sign out</button>` : null}
        ${me && !me.account ? html`<span class="who">read only</span>
          <button type="button" onClick=${onSignIn}>Sign in</button>` : null}
      </div>
    </header>
  `;
}
