// Signing in: by a link from the command line, or with an access token.
import { change, keepKey } from "../api.js";
import { html, useState } from "../lib.js";

/** Why the form is there. @type {Record<string, string>} */
const WHY = {
  over: "Your session is over: it ends after 12 hours without use, after a week, and when its token is revoked. What you have typed is kept: sign in, and go on.",
  left: "You are signed out.",
};

/** @param {{failure: string | null, why: "over" | "left" | null, onDone: () => void, onBack: (() => void) | null}} props */
export function SignIn({ failure, why, onDone, onBack }) {
  const [wrong, setWrong] = useState(/** @type {string | null} */ (null));
  const [isBusy, setBusy] = useState(false);
  /** @param {SubmitEvent & {currentTarget: HTMLFormElement}} event */
  const submitted = async (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    setBusy(true);
    try {
      keepKey((await change("POST", "/web/session", { token: String(new FormData(form).get("token") ?? "") })).key);
      form.reset();
      onDone();
    } catch (error) {
      setWrong(/** @type {Error} */ (error).message);
    } finally {
      setBusy(false);
    }
  };
  const says = wrong ?? failure;
  return html`
    <section class="sign-in">
      <h1>Sign in</h1>
      ${says ? html`<p class="banner bad" role="alert">${says}</p>` : null}
      ${why && !says ? html`<p class="banner" role="status">${WHY[why]}</p>` : null}
      <p>This is gpuqueue at <bdi>${location.host}</bdi>: the queue for the GPUs of this site. You submit jobs, and each
      starts as soon as a device has room for it. The page needs to know who you are, for it shows and changes what your
      account may.</p>
      <h2>From the command line</h2>
      <p>Where you use <code>gpuqueue</code>, type:</p>
      <pre>gpuqueue web</pre>
      <p>and open the link that it prints, within a minute.</p>
      <h2>With an access token</h2>
      <form onSubmit=${submitted}>
        <label for="token">Access token</label>
        <input id="token" name="token" type="password" autocomplete="off" spellcheck="false" required placeholder="gq_…" />
        <p class="actions">
          <button class="main" disabled=${isBusy}>Sign in</button>
          ${onBack ? html`<button type="button" onClick=${onBack}>Back</button>` : null}
        </p>
      </form>
      <p class="note">You get a token with <code>gpuqueue token create</code> on the machine of the service. With one that
      has the scope <code>read</code> alone, you can look and change nothing.</p>
    </section>
  `;
}
