package auth

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"
)

// TestPersonCookie: a sign-in is good for an hour, at every gateway of its farm,
// and for nothing but what it was sealed for.
func TestPersonCookie(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	of := func(secret, at string) *SignIn {
		public, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewSignIn(SignInConfig{Code: "code", Public: public, Secret: []byte(secret), Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := of("one", "https://render.example.org/farm")
	w := httptest.NewRecorder()
	if err := s.SignInByCode(w, "code"); err != nil {
		t.Fatal(err)
	}
	c := w.Result().Cookies()[0]
	if !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteLaxMode || c.Path != "/farm/" || c.MaxAge != 3600 {
		t.Errorf("cookie %+v", c)
	}
	with := func(s *SignIn, name, value string) bool {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.AddCookie(&http.Cookie{Name: name, Value: value, Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode})
		_, _, ok := s.Person(r)
		return ok
	}
	if !with(s, c.Name, c.Value) || !with(of("one", "http://127.0.0.1:8080"), c.Name, c.Value) {
		t.Error("not good in its own farm")
	}
	for name, ok := range map[string]bool{
		"another farm": with(of("two", "https://render.example.org"), c.Name, c.Value), "nothing": with(s, c.Name, ""), "a cut one": with(s, c.Name, c.Value[:20]),
	} {
		if ok {
			t.Errorf("good: %s", name)
		}
	}
	other, err := s.seal.seal(beginCookie, person{Tenant: "local", Subject: "x", Expires: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if with(s, personCookie, other) {
		t.Error("what was sealed for another use is good")
	}
	now = now.Add(time.Hour)
	if with(s, c.Name, c.Value) {
		t.Error("good after an hour")
	}
}
