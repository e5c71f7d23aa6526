// The page: who is signed in, which view is shown, and what holds for all views.
import { REFUSED, change, keepKey, read } from "./api.js";
import { html, render, useCallback, useEffect, useState } from "./lib.js";
import { useKeys } from "./keys.js";
import { Help } from "./parts/help.js";
import { lazy } from "./parts/lazy.js";
import { TopBar } from "./parts/top-bar.js";
import { replace, useRoute } from "./route.js";
import { Overview } from "./views/overview.js";
import { Queue } from "./views/queue.js";
import { SignIn } from "./views/sign-in.js";

/** The views by their name in the address. A new view is one more line; one with `isPart` has no link at the top. @type {Record<string, {title: string, show: any, isPart?: boolean}>} */
const VIEWS = {
  overview: { title: "Devices", show: Overview },
  queue: { title: "Queue", show: Queue },
  history: { title: "History", show: lazy(() => import("./views/history.js").then((it) => it.History)) },
  statistics: { title: "Statistics", show: lazy(() => import("./views/statistics.js").then((it) => it.StatisticsView)) },
  submit: { title: "Submit", show: lazy(() => import("./views/submit.js").then((it) => it.Submit)) },
  jobs: { title: "Job", show: lazy(() => import("./views/job.js").then((it) => it.Job)), isPart: true },
};

const SIGN_IN = "#sign-in=";
/** How often the page asks who is signed in, in milliseconds. */
const REFRESH_MS = 15000;

/** Sign in with the code of the link that the page was opened with, once, and take it out of the address. */
async function followLink() {
  if (!location.hash.startsWith(SIGN_IN)) return null;
  const code = location.hash.slice(SIGN_IN.length);
  replace("#/overview");
  try {
    keepKey((await change("POST", "/web/session", { code })).key);
    return null;
  } catch (error) {
    const { status, message } = /** @type {import("./api.js").ApiError} */ (error);
    return status === 401 ? "This link has been used already, or is older than a minute." : message;
  }
}

function App() {
  const [me, setMe] = useState(/** @type {import("./types.js").Me | null | undefined} */ (undefined));
  const [failure, setFailure] = useState(/** @type {string | null} */ (null));
  const [badLink, setBadLink] = useState(/** @type {string | null} */ (null));
  const [hasLeft, setLeft] = useState(false);
  const [isSigningIn, setSigningIn] = useState(false);
  const [isHelpOpen, setHelpOpen] = useState(false);
  const route = useRoute();

  const refresh = useCallback(async () => {
    try {
      setMe(await read("/me"));
      setFailure(null);
    } catch (error) {
      const { status, message } = /** @type {import("./api.js").ApiError} */ (error);
      if (status === 401 || status === 403) {
        setMe(null);
        setFailure(status === 403 ? message : null);
      } else {
        setFailure(message);
      }
    }
  }, []);

  useEffect(() => {
    const begin = async () => {
      setBadLink(await followLink());
      await refresh();
    };
    // A second link may be opened in the same tab.
    const moved = () => location.hash.startsWith(SIGN_IN) && begin();
    begin();
    addEventListener("hashchange", moved);
    addEventListener(REFUSED, refresh);
    const timer = setInterval(() => document.visibilityState === "visible" && refresh(), REFRESH_MS);
    return () => {
      clearInterval(timer);
      removeEventListener("hashchange", moved);
      removeEventListener(REFUSED, refresh);
    };
  }, []);

  const signedIn = async () => {
    setSigningIn(false);
    setBadLink(null);
    setLeft(false);
    await refresh();
  };
  const signOut = async () => {
    try {
      await change("DELETE", "/web/session");
    } catch (error) {
      return setFailure(`You are still signed in. ${/** @type {Error} */ (error).message}`);
    }
    keepKey("");
    setBadLink(null);
    setLeft(true);
    await refresh();
  };
  useKeys({
    "?": () => setHelpOpen(true),
    "g d": () => (location.hash = "#/overview"),
    "g q": () => (location.hash = "#/queue"),
    "g h": () => (location.hash = "#/history"),
    "g t": () => (location.hash = "#/statistics"),
    "g s": () => (location.hash = "#/submit"),
  });

  useEffect(() => setBadLink(null), [route.view, route.id]);

  const view = VIEWS[route.view] ?? VIEWS.overview;
  useEffect(() => {
    document.title = `${view.title} - gpuqueue`;
  }, [view]);

  const needsAccount = me === null || isSigningIn;
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${TopBar} me=${me} views=${VIEWS} shown=${needsAccount ? "" : route.view} onSignIn=${() => setSigningIn(true)}
      onSignOut=${signOut} onHelp=${() => setHelpOpen(true)} />
    <main id="main" tabindex="-1">
      ${me === undefined && !failure ? html`<p class="loading">Loading…</p>` : null}
      ${failure && !needsAccount ? html`<p class="banner bad" role="alert">${failure}</p>` : null}
      ${badLink && me && !needsAccount ? html`<p class="banner link-used" role="status">${badLink} ${me.account ? html`You are signed in as <bdi>${me.account}</bdi> already, so you need no new one.` : html`To sign in, type <code>gpuqueue web</code> for a new one.`} <button type="button" class="plain" onClick=${() => setBadLink(null)}>Close</button></p>` : null}
      ${needsAccount ? html`<${SignIn} failure=${badLink ? `${badLink} Type gpuqueue web for a new one.` : failure} hasLeft=${hasLeft} onDone=${signedIn}
        onBack=${me ? () => setSigningIn(false) : null} />` : null}
      ${me && !needsAccount ? html`<${view.show} me=${me} id=${route.id} query=${route.query} />` : null}
    </main>
    ${isHelpOpen ? html`<${Help} onClose=${() => setHelpOpen(false)} />` : null}
  `;
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
root.replaceChildren();
render(html`<${App} />`, root);
