package auth

import "testing"

// BenchmarkVerify is the cost of a token to a poll: seen before, and for the
// first time.
func BenchmarkVerify(b *testing.B) {
	s := newBench(b)
	token := s.token(nil)
	for name, forget := range map[string]bool{"known": false, "new": true} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if forget {
					s.tokens.verified = tokenCache{}
				}
				if _, err := s.tokens.Verify(b.Context(), token, resource); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
