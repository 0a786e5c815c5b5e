// Opens the folded parts of a page where the screen is wide enough for them. What people open or
// close stays so, because these parts are not fetched again.
"use strict";

(() => {
  const unfold = () => {
    if (!matchMedia("(min-width: 46rem)").matches) return;
    for (const fold of document.querySelectorAll("details.fold:not([data-seen])")) {
      fold.open = true;
      fold.dataset.seen = "yes";
    }
  };
  document.addEventListener("htmx:afterSettle", unfold);
  unfold();
})();
