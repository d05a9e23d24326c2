// The application's clock, which is not the database's: by RATELIMIT_APART, in seconds, or as a test sets it.
const RealDate = Date;

export const application = {
    /** Milliseconds ahead of the real clock. */
    ahead: Number(process.env.RATELIMIT_APART ?? 0) * 1000,
};

globalThis.Date = class Date extends RealDate {
    constructor(...given) {
        super(...(given.length === 0 ? [Date.now()] : given));
    }
    static now() {
        return RealDate.now() + application.ahead;
    }
};
