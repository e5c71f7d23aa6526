// The account that is signed in: what it may do, its access tokens, and the notifications of its jobs.
import { address, change, noted } from "../api.js";
import { html, useState } from "../lib.js";
import { Dialog } from "../parts/dialog.js";
import { Fault } from "../parts/field.js";
import { none } from "../parts/none.js";
import { Panel } from "../parts/panel.js";
import { Trouble } from "../parts/trouble.js";
import { useRead } from "../reading.js";
import { readsOnly, whyReadsOnly } from "../rights.js";
import { clock, fullTime } from "../words.js";
import { Notifications } from "./account-notifications.js";

/** @typedef {import("../types.js").Me} Me */
/** @typedef {import("../types.js").AccessToken} Token */

/** @param {string | null} iso @param {string} without */
const moment = (iso, without) => (iso ? html`<time datetime=${iso} title=${fullTime(iso)}>${clock(iso)}</time>` : none(without));

/** What is wrong with a token now; empty for a valid one. @param {Token} token */
function overOf({ revoked_at: revoked, expires_at: expires }) {
  if (revoked) return "revoked";
  return expires && new Date(expires).getTime() <= Date.now() ? "expired" : "";
}

/** @param {{token: Token, isOwn: boolean, onDone: () => void, onNo: () => void}} props */
function Revoke({ token, isOwn, onDone, onNo }) {
  const [wrong, setWrong] = useState(/** @type {string | null} */ (null));
  const revoke = async () => {
    try {
      await change("DELETE", `/tokens/${token.id}`);
      onDone();
    } catch (error) {
      setWrong(noted(error).message);
    }
  };
  return html`
    <${Dialog} title=${`Revoke token ${token.id}?`} onClose=${onNo}>
      <p>${token.name ? html`<bdi>${token.name}</bdi>. ` : null}Programs that use it are refused from then on, and browsers that signed in with it are signed out. A revoked token does not come back.</p>
      ${isOwn ? html`<p class="warn-text">You signed in here with this token: this page is signed out, too.</p>` : null}
      <${Fault} id="revoke" words=${wrong} />
      <p class="actions">
        <button type="button" class="danger" onClick=${revoke}>Revoke ${token.id}</button>
        <button type="button" onClick=${onNo} autofocus>Keep it</button>
      </p>
    <//>
  `;
}

/** @param {{me: Me}} props */
function Tokens({ me }) {
  const [isAll, setAll] = useState(false);
  const [asked, setAsked] = useState(/** @type {Token | null} */ (null));
  const [says, setSays] = useState("");
  /** @type {import("../reading.js").Once<Token[]>} */
  const { value: tokens, error, again } = useRead(address("/tokens", { everybody: isAll }));
  const mayRevoke = !readsOnly(me);
  const tools = me.admin ? html`<label class="check"><input type="checkbox" checked=${isAll} onChange=${(/** @type {any} */ event) => setAll(event.currentTarget.checked)} /> Of everybody</label>` : null;
  const done = () => {
    setSays(`Token ${asked?.id} is revoked.`);
    setAsked(null);
    again();
  };
  return html`
    <${Panel} name="tokens" title="Access tokens" tools=${tools}>
      <${Trouble} error=${error} />
      ${tokens && !tokens.length ? html`<p class="none">There is none.</p>` : null}
      ${tokens?.length ? html`
        <div class="wide" tabindex="0" role="region" aria-label="Access tokens, scrollable"><table class="figures stacked" aria-label="Access tokens">
          <thead><tr><th scope="col">Token</th>${isAll ? html`<th scope="col">Account</th>` : null}<th scope="col">Name</th><th scope="col">May</th><th scope="col">Made</th><th scope="col">Last used</th><th scope="col">Ends</th><th scope="col"><span class="hidden">Revoke</span></th></tr></thead>
          <tbody>${tokens.map((each) => {
            const over = overOf(each);
            return html`<tr key=${each.id} class=${over ? "over" : ""}>
              <th scope="row"><code>${each.id}</code>${each.id === me.token_id ? html` <small>this page</small>` : null}</th>
              ${isAll ? html`<td data-label="account"><bdi>${each.account}</bdi>${each.uid === null ? html` <small>host</small>` : null}</td>` : null}
              <td data-label="name"><bdi>${each.name}</bdi></td>
              <td data-label="may">${[...each.scopes].sort().join(", ") || none("only serve jobs")}</td>
              <td data-label="made">${moment(each.made_at, "")}</td>
              <td data-label="last used">${moment(each.last_used_at, "never")}</td>
              <td data-label="ends">${over ? html`<span class="none">${over}</span>` : moment(each.expires_at, "never")}</td>
              <td>${over || !mayRevoke ? null : html`<button type="button" class="plain" aria-label=${`Revoke token ${each.id}…`} onClick=${() => setAsked(each)}>Revoke…</button>`}</td>
            </tr>`;
          })}</tbody>
        </table></div>` : null}
      <p role="status">${says}</p>
      ${mayRevoke ? null : html`<p class="note">You signed in with a token that may only read, so you can revoke none here.</p>`}
      <p class="note">A browser makes no tokens. On the machine of the service, type <code>gpuqueue token create</code>.</p>
      ${asked ? html`<${Revoke} token=${asked} isOwn=${asked.id === me.token_id} onDone=${done} onNo=${() => setAsked(null)} />` : null}
    <//>
  `;
}

/** @param {{me: Me}} props */
export function Account({ me }) {
  if (!me.account) return html`<div class="empty"><p>You look without an account, so you can change nothing.</p></div>`;
  return html`
    <div class="account">
      <h1>Your account: <bdi>${me.account}</bdi></h1>
      <p>${me.admin ? "You are an administrator: you change all jobs, and drain devices." : readsOnly(me) ? whyReadsOnly(me) : "You submit jobs, and change your own."}</p>
      <${Tokens} me=${me} />
      <${Notifications} me=${me} />
      <p><a href="#/kiosk">The view for a screen in the corridor</a></p>
    </div>
  `;
}
