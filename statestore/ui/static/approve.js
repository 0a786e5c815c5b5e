// Approves a relocation in Airflow: it triggers the DAG that moves the stores, by Airflow's own API
// and with the permissions of whoever is logged in. Loaded only where Airflow serves the page.
"use strict";

(() => {
  const TAG = "state_relocation";

  const ask = async (form, path, body) => {
    const options = { credentials: "same-origin", headers: { Accept: "application/json" } };
    if (body !== undefined) {
      options.method = "POST";
      options.headers["Content-Type"] = "application/json";
      options.body = JSON.stringify(body);
    }
    const answer = await fetch(form.dataset.api + path, options);
    const found = await answer.json().catch(() => ({}));
    if (answer.ok) return found;
    const detail = typeof found.detail === "string" ? found.detail : JSON.stringify(found.detail);
    throw new Error(
      answer.status === 403 ? "Airflow does not let you do this." :
      answer.status === 401 ? "Airflow does not know you any more: log in again." :
      `Airflow answered ${answer.status}: ${detail}`
    );
  };

  // The DAG of that kind whose form has the application. DAGs that bear its name as a tag come
  // first, so that one of many is found soon.
  const dagOf = async (form) => {
    const name = form.dataset.application;
    const found = [];
    for (;;) {
      const page = await ask(form, `/dags?tags=${TAG}&limit=100&offset=${found.length}`);
      found.push(...page.dags);
      if (!page.dags.length || found.length >= page.total_entries) break;
    }
    const bears = (dag) => dag.tags.some((tag) => tag.name === name);
    for (const dag of [...found.filter(bears), ...found.filter((dag) => !bears(dag))]) {
      const { params } = await ask(form, `/dags/${encodeURIComponent(dag.dag_id)}/details`);
      const known = params && params.approve && params.application;
      const choices = known && known.schema && known.schema.enum;
      if (known && (choices ? choices.includes(name) : known.value === name)) return dag;
    }
    throw new Error(
      `No DAG with the tag ${TAG} that you may see has this application: use the command instead.`
    );
  };

  const approve = async (form) => {
    const dag = await dagOf(form);
    const run = await ask(form, `/dags/${encodeURIComponent(dag.dag_id)}/dagRuns`, {
      logical_date: null,
      conf: { application: form.dataset.application, approve: true },
      note: "Approved on the page of state stores",
    });
    const off = dag.is_paused ? " The DAG is switched off: switch it on, and the run begins." : "";
    return `Approved: run ${run.dag_run_id} of ${dag.dag_id} moves the stores.${off}`;
  };

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("form.approve")) return;
    event.preventDefault();
    const button = form.querySelector("button");
    const told = form.querySelector("output");
    button.disabled = true;
    told.textContent = "asking Airflow …";
    try {
      told.textContent = await approve(form);
    } catch (error) {
      told.textContent = error.message;
      button.disabled = false;
    }
  });
})();
