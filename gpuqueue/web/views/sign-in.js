// Signing in: by a link from the command line, or with an access token.
import { change, keepKey } from "../api.js";
import { html, useState } from "../lib.js";

/** @param {{failure: string | null, hasLeft: boolean, onDone: () => void, onBack: (() => void) | null}} props */
export function SignIn({ failure, hasLeft, onDone, onBack }) {
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
      ${hasLeft && !says ? html`<p class="banner" role="status">You are signed out.</p>` : null}
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
