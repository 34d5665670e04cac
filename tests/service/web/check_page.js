// Returns what is wrong with a page, as texts.
() => {
  const wrong = [];
  const channels = (color) => color.match(/[\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = channels(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  for (const element of document.querySelectorAll("body *")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!hasText || !element.checkVisibility() || element.closest(".skip, .unseen")) continue;
    const style = getComputedStyle(element);
    const color = channels(element instanceof SVGElement ? style.fill : style.color);
    const [light, dark] = [luminance(color), luminance(ground(element))].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(2)}: ${element.tagName} ${element.textContent.trim().slice(0, 40)}`);
  }
  if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
  if (!document.documentElement.lang) wrong.push("no lang");
  for (const field of document.querySelectorAll("input:not([type=hidden]):not([hidden]), select"))
    if (!field.labels.length) wrong.push(`no label: ${field.name}`);
  for (const image of document.querySelectorAll("img")) if (image.getAttribute("alt") === null) wrong.push("no alt");
  for (const drawing of document.querySelectorAll("svg"))
    if (!drawing.getAttribute("aria-label") && !drawing.ariaHidden) wrong.push("a drawing without words");
  for (const button of document.querySelectorAll("button")) if (!button.textContent.trim()) wrong.push("a button without words");
  if (document.documentElement.scrollWidth > innerWidth) {
    const wide = [...document.querySelectorAll("body *")].filter((element) => element.getBoundingClientRect().right > innerWidth);
    wrong.push(`${document.documentElement.scrollWidth} px wide: ${wide.slice(-3).map((element) => element.outerHTML.slice(0, 120))}`);
  }
  for (const entry of performance.getEntriesByType("resource"))
    if (new URL(entry.name).origin !== location.origin) wrong.push(`from elsewhere: ${entry.name}`);
  return wrong;
}
