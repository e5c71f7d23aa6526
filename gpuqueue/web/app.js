// The page: who is signed in, which view is shown, and what holds for all views.
import { REFUSED, change, hasKey, keepKey, read } from "./api.js";
import { forgetDrafts, keepDraftsOf } from "./drafts.js";
import { html, render, useCallback, useEffect, useState } from "./lib.js";
import { useKeys } from "./keys.js";
import { Help } from "./parts/help.js";
import { lazy } from "./parts/lazy.js";
import { TopBar } from "./parts/top-bar.js";
import { Trouble, Troubles } from "./parts/trouble.js";
import { replace, useRoute } from "./route.js";
import { Mine } from "./views/mine.js";
import { Overview } from "./views/overview.js";
import { Queue } from "./views/queue.js";
import { SignIn } from "./views/sign-in.js";

/** The views by their name in the address. A new view is one more line; one with `isPart` has no link at the top, one that `needsAccount` none without an account, one that `changes` something none for who may only read, and one that `isBare` no bar. @type {Record<string, View>} */
const VIEWS = {
  mine: { title: "My jobs", show: Mine, needsAccount: true },
  overview: { title: "Devices", show: Overview },
  queue: { title: "Queue", show: Queue },
  history: { title: "History", show: lazy(() => import("./views/history.js").then((it) => it.History)) },
  statistics: { title: "Statistics", show: lazy(() => import("./views/statistics.js").then((it) => it.StatisticsView)) },
  submit: { title: "Submit", changes: true, show: lazy(() => import("./views/submit.js").then((it) => it.Submit)) },
  account: { title: "Account", show: lazy(() => import("./views/account.js").then((it) => it.Account)), isPart: true },
  kiosk: { title: "Devices and queue", show: lazy(() => import("./views/kiosk.js").then((it) => it.Kiosk)), isPart: true, isBare: true },
  jobs: { title: "Job", show: lazy(() => import("./views/job.js").then((it) => it.Job)), isPart: true },
};

/** @typedef {{title: string, show: any, isPart?: boolean, needsAccount?: boolean, changes?: boolean, isBare?: boolean}} View */
/** Why somebody has to sign in: the session is over, or they have left. @typedef {"over" | "left" | null} Reason */

const SIGN_IN = "#sign-in=";
/** How often the page asks who is signed in, in milliseconds. */
const REFRESH_MS = 15000;

/** Sign in with the code of the link that the page was opened with, once, and take it out of the address. */
async function followLink() {
  if (!location.hash.startsWith(SIGN_IN)) return null;
  const code = location.hash.slice(SIGN_IN.length);
  replace("#/");
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
  const [failure, setFailure] = useState(/** @type {import("./api.js").ApiError | null} */ (null));
  const [badLink, setBadLink] = useState(/** @type {string | null} */ (null));
  const [why, setWhy] = useState(/** @type {Reason} */ (null));
  const [isSigningIn, setSigningIn] = useState(false);
  const [isHelpOpen, setHelpOpen] = useState(false);
  const route = useRoute();

  const refresh = useCallback(async () => {
    try {
      const found = await read("/me");
      keepDraftsOf(found.account);
      setMe(found);
      setFailure(null);
      if (!found.account && hasKey()) setWhy("over");
    } catch (error) {
      const met = /** @type {import("./api.js").ApiError} */ (error);
      const isRefused = met.status === 401 || met.status === 403;
      if (isRefused) setMe(null);
      if (met.status === 401 && hasKey()) setWhy("over");
      setFailure(met.status === 401 ? null : met);
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
    setWhy(null);
    await refresh();
  };
  const signOut = async () => {
    try {
      await change("DELETE", "/web/session");
    } catch (error) {
      const met = /** @type {import("./api.js").ApiError} */ (error);
      met.message = `You are still signed in. ${met.message}`;
      return setFailure(met);
    }
    keepKey("");
    forgetDrafts();
    setBadLink(null);
    setWhy("left");
    await refresh();
  };
  /** Look on without an account. */
  const back = () => {
    setSigningIn(false);
    if (VIEWS[route.view]?.needsAccount) location.hash = "#/overview";
  };
  useKeys({
    "?": () => setHelpOpen(true),
    "g m": () => (location.hash = "#/mine"),
    "g d": () => (location.hash = "#/overview"),
    "g q": () => (location.hash = "#/queue"),
    "g h": () => (location.hash = "#/history"),
    "g t": () => (location.hash = "#/statistics"),
    "g s": () => (location.hash = "#/submit"),
  });

  useEffect(() => setBadLink(null), [route.view, route.id]);

  const name = route.view in VIEWS ? route.view : me?.account ? "mine" : "overview";
  const view = VIEWS[name];
  useEffect(() => {
    document.title = `${view.title} - gpuqueue`;
  }, [view]);

  const needsAccount = me === null || isSigningIn || Boolean(me && !me.account && view.needsAccount);
  const isBare = Boolean(view.isBare) && !needsAccount;
  useEffect(() => {
    if (me?.account) setSigningIn(false);
  }, [me?.account]);
  return html`
    ${isBare ? null : html`<a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
      <${TopBar} me=${me} views=${VIEWS} shown=${needsAccount ? "" : name} onSignIn=${() => setSigningIn(true)}
        onSignOut=${signOut} onHelp=${() => setHelpOpen(true)} />`}
    <main id="main" tabindex="-1">
      <${Troubles} />
      ${me === undefined && !failure ? html`<p class="loading">Loading…</p>` : null}
      ${failure && !needsAccount ? html`<${Trouble} error=${failure} />` : null}
      ${badLink && me && !needsAccount ? html`<p class="banner link-used" role="status">${badLink} ${me.account ? html`You are signed in as <bdi>${me.account}</bdi> already, so you need no new one.` : html`To sign in, type <code>gpuqueue web</code> for a new one.`} <button type="button" class="plain" onClick=${() => setBadLink(null)}>Close</button></p>` : null}
      ${needsAccount ? html`<${SignIn} failure=${badLink ? `${badLink} Type gpuqueue web for a new one.` : (failure?.message ?? null)} why=${why} onDone=${signedIn}
        onBack=${me ? back : null} />` : null}
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
