// The application's clock: an hour ahead of the database's or, on the file, behind it; or as a test sets it.
const RealDate = Date;

export const application = {
    /** Milliseconds ahead of the real clock. */
    ahead: { extension: 3600, file: -3600 }[process.env.RATELIMIT_EDITION] * 1000 || 0,
};

globalThis.Date = class Date extends RealDate {
    constructor(...given) {
        super(...(given.length === 0 ? [Date.now()] : given));
    }
    static now() {
        return RealDate.now() + application.ahead;
    }
};
