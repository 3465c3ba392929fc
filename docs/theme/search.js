// The theme's search dialog has no name, which screen readers need.
document.querySelector('[data-md-component="search"]')?.setAttribute("aria-label", "Search");
