// Draws every view of the page with the one bundle that the page carries.
(() => {
  // What is folded up on a screen is not lost on paper.
  window.onbeforeprint = () => {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
  };

  const unpack = async () => {
    // A notebook may insert a view before the cell with the bundle: wait for it, but not for ever.
    let packed;
    for (let tries = 0; tries < 100 && !packed; tries++) {
      packed = document.querySelector(".hoptrace-bundle");
      if (!packed) await new Promise((done) => setTimeout(done, 100));
    }
    if (!packed) throw new Error("the scripts are not on this page: run all of its cells again");
    const bytes = Uint8Array.from(atob(packed.textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    // As a function's body: nothing of the page can end it, and it leaves no globals.
    return new Function((await new Response(stream).text()) + ";return CircuitsVis")();
  };

  // Heads are chosen with the mouse; let the keyboard do it too.
  const reachable = (place) => {
    for (const name of place.querySelectorAll("h4")) {
      const choice = name.parentElement.parentElement;
      choice.tabIndex = 0;
      choice.setAttribute("role", "button");
      choice.setAttribute("aria-label", "show " + name.textContent);
      choice.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        choice.click();
      });
    }
    // Small heads have their button's name, the chosen one is told by the words of the whole, and
    // circuitsvis' headings are no headings of the page.
    for (const canvas of place.querySelectorAll("canvas")) canvas.setAttribute("aria-hidden", "true");
    for (const heading of place.querySelectorAll("h2, h3, h4"))
      heading.setAttribute("role", "presentation");
  };

  const draw = async (place) => {
    const circuitsvis = await window.hoptraceCircuitsVis;
    const inner = document.createElement("div");
    inner.id = "hoptrace-" + Math.random().toString(36).slice(2);
    const still = place.querySelector("img");
    place.append(inner);
    const properties = JSON.parse(place.dataset.properties);
    circuitsvis.render(inner.id, circuitsvis[place.dataset.component], properties);
    for (let tries = 0; tries < 100 && !inner.querySelector("canvas"); tries++)
      await new Promise((done) => setTimeout(done, 20));
    if (!inner.querySelector("canvas")) {
      inner.remove();
      throw new Error("nothing could be drawn here");
    }
    reachable(place);
    still.remove();
    place.dataset.drawn = "yes";
  };

  window.hoptraceCircuitsVis ??= unpack();
  window.hoptraceDrawing = (window.hoptraceDrawing ?? Promise.resolve()).then(async () => {
    for (const place of document.querySelectorAll(".hoptrace-viewer:not([data-drawn])")) {
      place.dataset.drawn = "no";
      try {
        await draw(place);
      } catch (error) {
        const said = document.createElement("p");
        said.textContent = "A still picture: " + error.message;
        place.append(said);
      }
    }
    document.documentElement.dataset.hoptraceDrawn = "yes";
  });
})();
