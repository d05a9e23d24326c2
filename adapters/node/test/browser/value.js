// docs/browser.md shows this; the page's programs use it.
export async function getValue() {
    const response = await fetch('/limits/sendMessage');
    if (!response.ok) throw new Error(`the limit is not known: ${response.status}`);
    return response.json();
}
