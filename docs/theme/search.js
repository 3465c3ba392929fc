// The theme's search dialog has no name, which screen readers need.
document.querySelector('[data-md-component="search"]')?.setAttribute("aria-label", "Search");
// Code that is wider than a phone scrolls by the keyboard, too.
for (const code of document.querySelectorAll("pre > code")) code.tabIndex = 0;
